-- ticking: read the recurring entries and their ticks, or only the due ticks. Reads only.
--
--#keys recurring ticks ticked
-- ARGV  1 revision that the caller knows ('' asks for all)  2 '1' asks only for the size of all
-- Returns {now us, revision, entries, ticks, ticked}; each of the last three is a flat list of names and values.
--         If the caller knows the present revision, entries is empty, ticks has the due ticks and the tick after them,
--         and ticked has the kept data of the due entries.
--         For the size: the number of bytes of all entries and of their kept data.
if ARGV[2] == '1' then
  local size = 0
  for _, name in ipairs(redis.call('ZRANGE', KEY.ticks, 0, -1)) do
    size = size + redis.call('HSTRLEN', KEY.recurring, name) + redis.call('HSTRLEN', KEY.ticked, name)
  end
  return size
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local rev = redis.call('HGET', KEY.recurring, '#') or '0'
if rev ~= ARGV[1] or redis.call('ZCARD', KEY.ticks) ~= math.max(0, redis.call('HLEN', KEY.recurring) - 1) then
  return {now, rev, redis.call('HGETALL', KEY.recurring), redis.call('ZRANGE', KEY.ticks, 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEY.ticked)}
end
local ticks = redis.call('ZRANGEBYSCORE', KEY.ticks, '-inf', now, 'WITHSCORES')
local ticked = {}
for i = 1, #ticks, 2 do
  ticked[i], ticked[i + 1] = ticks[i], redis.call('HGET', KEY.ticked, ticks[i]) or ''
end
local next = redis.call('ZRANGEBYSCORE', KEY.ticks, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
for i = 1, #next do ticks[#ticks + 1] = next[i] end
return {now, rev, {}, ticks, ticked}
