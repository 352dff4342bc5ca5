-- swap: replace one value in a hash or delete it, if it is still the one that was read.
--
--#keys hash
-- ARGV  1 field  2 value as read  3 new value ('' deletes the field)
-- Returns 1, or 0 if the value has changed.
redis.call('HDEL', KEY.hash, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua
if (redis.call('HGET', KEY.hash, ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEY.hash, ARGV[1]) else redis.call('HSET', KEY.hash, ARGV[1], ARGV[3]) end
return 1
