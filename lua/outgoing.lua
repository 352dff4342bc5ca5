-- outgoing: read follow-ups that wait to be delivered.
--
--#keys count out
-- ARGV  1 number: read the follow-ups after it  2 maximum number of follow-ups  3 maximum bytes of payloads, which a
--       single follow-up may exceed  4 1 to write something, so that a WAIT covers the numbers of the follow-ups, or ''
-- Returns {follow-ups that wait, then per follow-up: number, queue, id, payload, score, due time, end}; see
--         lib/send_on.lua
local after, most, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local answer, n = {redis.call('XLEN', KEY.out)}, 0
if ARGV[4] == '1' and answer[1] > 0 then
  redis.call('HDEL', KEY.count, '') -- the first write needs no memory: see lease.lua
  redis.call('HSET', KEY.count, 'out', redis.call('HGET', KEY.count, 'out') or '0') -- any value, also a damaged one
end
while n < most do
  local few = math.min(10, most - n)
  local page = redis.call('XRANGE', KEY.out, string.format('%.0f-0', after + 1), '+', 'COUNT', few)
  for i = 1, #page do
    local fields, of = page[i][2], {}
    for k = 1, #fields, 2 do of[fields[k]] = fields[k + 1] end
    room = room - #(of.p or '')
    if room < 0 and n > 0 then return answer end
    n, after = n + 1, tonumber(string.match(page[i][1], '^%d+'))
    for _, value in ipairs({string.format('%.0f', after), of.q or '', of.i or '', of.p or '', of.s or '', of.a or '', of.e or ''}) do answer[#answer + 1] = value end
  end
  if #page < few then break end
end
return answer
