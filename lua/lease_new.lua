-- lease_new: take out a lease for an instance that never had one.
--
-- KEYS  1 lease
-- ARGV  1 the lease's JSON  2 ttl ms
-- Returns 1, or 0 if the key is there: the instance's name was used before.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
-- Deleting nothing, as a first write that cannot grow, lets a node start while Redis is out of memory.
redis.call('DEL', KEYS[1])
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
