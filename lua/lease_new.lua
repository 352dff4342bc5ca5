-- lease_new: take out a lease for an instance that never had one, and enter it in the index.
--
--#keys lease instances
-- ARGV  1 the lease's JSON  2 ttl ms  3 instance  4 what identifies it
-- Returns 1, or 0 if the key is there: the instance's name was used before. The same lease of the
-- same instance is this call, repeated because its answer was lost.
if redis.call('EXISTS', KEY.lease) == 1 then
  local same = redis.call('GET', KEY.lease) == ARGV[1] and redis.call('HGET', KEY.instances, ARGV[3]) == ARGV[4]
  return same and 1 or 0
end
-- Deleting nothing, as a first write that cannot grow, lets a node start while Redis is out of
-- memory.
redis.call('DEL', KEY.lease)
redis.call('HSET', KEY.instances, ARGV[3], ARGV[4])
redis.call('SET', KEY.lease, ARGV[1], 'PX', ARGV[2])
return 1
