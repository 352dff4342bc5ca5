-- Reads payloads of a pile, with their scores.
--
-- KEYS[1]   the pile
-- ARGV      the rank of the first, how many bytes to answer at most, how many payloads at most
-- Returns   payload and score in turn; nothing after the last
local found, size, at = {}, 0, tonumber(ARGV[1])
local last = at + tonumber(ARGV[3])
while size < tonumber(ARGV[2]) and at < last do
  local some = redis.call('ZRANGE', KEYS[1], at, math.min(at + 16, last) - 1, 'WITHSCORES')
  if #some == 0 then break end
  for i = 1, #some do
    found[#found + 1] = some[i]
    size = size + #some[i]
  end
  at = at + #some / 2
end
return found
