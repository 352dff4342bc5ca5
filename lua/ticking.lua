-- ticking: what recurs, and what of it is due.
--
--#keys recurring ticks ticked
-- ARGV  1 revision that the caller knows, '' asks for all
-- Returns {now us, revision, entries, ticks, ticked}, each of the last three flat: name, value, ...
--         Of a revision that the caller knows entries is empty, ticks are those that are due and the next
--         one after them, and ticked is what is kept of those.
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
