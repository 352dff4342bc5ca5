-- lease_new: create the first lease of an instance, and enter the instance in the index.
--
--#keys lease instances
-- ARGV  1 the lease's JSON  2 ttl ms  3 instance  4 what identifies it
-- Returns 1, or 0 if the key exists, because the name was used before. If the same lease of the same
-- instance exists, this call has created it before, and its answer was lost.
if redis.call('EXISTS', KEY.lease) == 1 then
  local same = redis.call('GET', KEY.lease) == ARGV[1] and redis.call('HGET', KEY.instances, ARGV[3]) == ARGV[4]
  return same and 1 or 0
end
-- The first write deletes nothing and needs no memory, so a node can start while Redis is out of memory.
redis.call('DEL', KEY.lease)
redis.call('HSET', KEY.instances, ARGV[3], ARGV[4])
redis.call('SET', KEY.lease, ARGV[1], 'PX', ARGV[2])
return 1
