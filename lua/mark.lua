-- mark: the leader's sign of life, renewed only while the cluster record is the leader's.
--
--#keys record leader
-- ARGV  1 record as the leader knows it  2 the mark  3 ttl ms
-- Returns 1, or 0 if the record is another one: the leader leads a cluster of the past.
if redis.call('GET', KEY.record) ~= ARGV[1] then return 0 end
-- A first write that cannot grow, for a Redis out of memory; see lease.lua.
redis.call('PEXPIRE', KEY.leader, ARGV[3])
redis.call('SET', KEY.leader, ARGV[2], 'PX', ARGV[3])
return 1
