-- swap: replace or delete a value of a hash, if it is unchanged.
--
--#keys hash
-- ARGV  1 field  2 value as read  3 new value ('' deletes the field)
-- Returns 1, or 0 if the value has changed.
redis.call('HDEL', KEY.hash, '') -- the first write needs no memory: see lease.lua
if (redis.call('HGET', KEY.hash, ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEY.hash, ARGV[1]) else redis.call('HSET', KEY.hash, ARGV[1], ARGV[3]) end
return 1
