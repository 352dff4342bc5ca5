-- recur: add, change or remove a recurring entry.
--
--#keys recurring ticks ticked
-- ARGV  1 name  2 revision as read (0 without one)  3 new entry ('' removes it)  4 its next tick in us ('' keeps it)
--       5 maximum number of entries  6 kept data of its last tick as read ('' without any)  7 new kept data ('' keeps it)
-- Returns 1; 0 if an entry has changed since that revision, or this entry had a tick meanwhile; 2 if there are as many
--         entries as are allowed
-- Field # of the entries is the revision, which grows by one with each change. Each entry contains its revision, so no
-- two texts of an entry are equal. A repeated change finds its own text and returns 1.
local rev = redis.call('HGET', KEY.recurring, '#') or '0'
local was = redis.call('HGET', KEY.recurring, ARGV[1]) or ''
if was == ARGV[3] and rev + 0 == ARGV[2] + 1 then return 1 end
if rev ~= ARGV[2] or (redis.call('HGET', KEY.ticked, ARGV[1]) or '') ~= ARGV[6] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEY.recurring, ARGV[1])
  redis.call('ZREM', KEY.ticks, ARGV[1])
  redis.call('HDEL', KEY.ticked, ARGV[1])
else
  if was == '' and redis.call('HLEN', KEY.recurring) > tonumber(ARGV[5]) then return 2 end
  redis.call('HSET', KEY.recurring, ARGV[1], ARGV[3])
  if ARGV[4] ~= '' then redis.call('ZADD', KEY.ticks, ARGV[4], ARGV[1]) end
  if ARGV[7] ~= '' then redis.call('HSET', KEY.ticked, ARGV[1], ARGV[7]) end
end
redis.call('HSET', KEY.recurring, '#', string.format('%.0f', rev + 1))
return 1
