-- reply: read the reply of a call.
--
--#keys jobs parked reply
-- ARGV  1 token  2 id  3 '1': whether any payload of the id waits or runs is enough; that costs no look at them
--       4 maximum bytes of the reply
-- Returns the reply (lib/tell.lua); 'long <bytes> <state>' for a longer reply; 'pending' while a payload with
--         the token waits or runs; '' otherwise. For a crowded id the call is pending while any payload waits.
--#include record
--#include caller
local reply = redis.call('GET', KEY.reply .. ':' .. ARGV[1])
if reply and string.sub(reply, 1, 4) == 'see ' then reply = redis.call('GET', KEY.reply .. ':' .. string.sub(reply, 5)) end
if reply and #reply > tonumber(ARGV[4]) then
  local stop = string.find(reply, '\n', 1, true) or #reply + 1
  return 'long ' .. #reply .. ' ' .. string.sub(reply, 1, stop - 1)
end
if reply then return reply end
if ARGV[3] == '1' then return redis.call('HEXISTS', KEY.jobs, ARGV[2]) == 1 and 'pending' or '' end

-- calls reports whether a payload of the job has the token. It parses the addresses. A text search could
-- take long if somebody has pushed almost the token over and over.
local function calls(record)
  local sound, job = pcall(parse, record or '')
  if not sound then return false end
  if string.byte(record, 1) == 115 then return job.n > 0 end
  for i = 1, job.n do
    local address = address_of(job.data[i])
    if address and caller_at((parts_of(address))) == ARGV[1] then return true end
  end
  return false
end
if calls(redis.call('HGET', KEY.jobs, ARGV[2])) or calls(redis.call('HGET', KEY.parked, ARGV[2])) then return 'pending' end
return ''
