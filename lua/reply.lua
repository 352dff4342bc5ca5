-- reply: how a call has ended.
--
--#keys jobs parked reply
-- ARGV  1 token  2 id  3 '1': whether any payload of the id waits or runs is enough; that costs no look at them
-- Returns the reply (lib/tell.lua), 'pending' while a payload of the id waits or runs that has the token, '' if
--         there is neither. Of a crowded id, whose payloads are many, it is pending as long as some wait.
--#include record
--#include tell
local reply = redis.call('GET', KEY.reply .. ':' .. ARGV[1])
if reply and string.sub(reply, 1, 4) == 'see ' then reply = redis.call('GET', KEY.reply .. ':' .. string.sub(reply, 5)) end
if reply then return reply end
if ARGV[3] == '1' then return redis.call('HEXISTS', KEY.jobs, ARGV[2]) == 1 and 'pending' or '' end

-- calls says whether one of a job's payloads has the token. It is not searched for as text: that could
-- take long where somebody has pushed what is almost the token, over and over.
local function calls(record)
  local sound, job = pcall(parse, record or '')
  if not sound then return false end
  if string.byte(record, 1) == 115 then return job.n > 0 end
  for i = 1, job.n do
    if caller(job.data[i]) == ARGV[1] then return true end
  end
  return false
end
if calls(redis.call('HGET', KEY.jobs, ARGV[2])) or calls(redis.call('HGET', KEY.parked, ARGV[2])) then return 'pending' end
return ''
