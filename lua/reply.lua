-- reply: how a call has ended.
--
--#keys jobs parked reply
-- ARGV  1 token  2 id
-- Returns the reply (lib/tell.lua), 'pending' while a payload of the id waits or runs that has the token, '' if
--         there is neither. Of a crowded id, whose payloads are many, it is pending as long as some wait.
local reply = redis.call('GET', KEY.reply .. ':' .. ARGV[1])
if reply and string.sub(reply, 1, 4) == 'see ' then reply = redis.call('GET', KEY.reply .. ':' .. string.sub(reply, 5)) end
if reply then return reply end
local address = 'r' .. ARGV[1] .. ' '
for _, record in ipairs({redis.call('HGET', KEY.jobs, ARGV[2]) or '', redis.call('HGET', KEY.parked, ARGV[2]) or ''}) do
  if string.byte(record, 1) == 115 or string.find(record, address, 1, true) then return 'pending' end
end
return ''
