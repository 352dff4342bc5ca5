-- tick: what recurs has had a tick: the next one is another.
--
--#keys recurring ticks ticked
-- ARGV  1 name  2 the entry as it was read  3 the tick (us), '' if it had none  4 the next one  5 what is kept of the last one
-- Returns 1; 0 if the entry was changed, or that tick is not its next one (any more): nothing was done.
-- Sent twice it is refused the second time, as another node is that has had the same tick.
if redis.call('HGET', KEY.recurring, ARGV[1]) ~= ARGV[2] then return 0 end
local due = redis.call('ZSCORE', KEY.ticks, ARGV[1])
if (due and tonumber(due)) ~= (ARGV[3] ~= '' and tonumber(ARGV[3])) then return 0 end
redis.call('ZADD', KEY.ticks, ARGV[4], ARGV[1])
redis.call('HSET', KEY.ticked, ARGV[1], ARGV[5])
return 1
