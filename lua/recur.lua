-- recur: add, change or remove something that recurs.
--
--#keys recurring ticks ticked
-- ARGV  1 name  2 revision as read, 0 if there was none  3 the entry, '' removes it  4 its next tick (us), '' = as it is
--       5 most entries
-- Returns 1; 0 if something was changed since that revision; 2 if there are as many entries as there may be
-- The revision is field # of the entries, and grows by one with each change: no two texts of an entry are equal,
-- as each has its revision. A change that is sent twice finds itself.
local rev = redis.call('HGET', KEY.recurring, '#') or '0'
local was = redis.call('HGET', KEY.recurring, ARGV[1]) or ''
if was == ARGV[3] and rev + 0 == ARGV[2] + 1 then return 1 end
if rev ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEY.recurring, ARGV[1])
  redis.call('ZREM', KEY.ticks, ARGV[1])
  redis.call('HDEL', KEY.ticked, ARGV[1])
else
  if was == '' and redis.call('HLEN', KEY.recurring) > tonumber(ARGV[5]) then return 2 end
  redis.call('HSET', KEY.recurring, ARGV[1], ARGV[3])
  if ARGV[4] ~= '' then redis.call('ZADD', KEY.ticks, ARGV[4], ARGV[1]) end
end
redis.call('HSET', KEY.recurring, '#', string.format('%.0f', rev + 1))
return 1
