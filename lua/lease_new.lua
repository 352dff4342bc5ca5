-- lease_new: take out a lease for an instance that never had one, and enter it in the index.
--
-- KEYS  1 lease  2 instances
-- ARGV  1 the lease's JSON  2 ttl ms  3 instance  4 what identifies it
-- Returns 1, or 0 if the key is there: the instance's name was used before. The same lease of the
-- same instance is this call, repeated because its answer was lost.
if redis.call('EXISTS', KEYS[1]) == 1 then
  local same = redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('HGET', KEYS[2], ARGV[3]) == ARGV[4]
  return same and 1 or 0
end
-- Deleting nothing, as a first write that cannot grow, lets a node start while Redis is out of memory.
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
