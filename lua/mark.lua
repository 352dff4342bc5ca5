-- mark: the leader's sign of life, renewed only while the cluster record is the leader's.
--
--#keys record leader
-- ARGV  1 the record that the leader knows  2 the mark  3 ttl ms
-- Returns 1, or 0 if the record is another record, because the leader leads a former cluster.
if redis.call('GET', KEY.record) ~= ARGV[1] then return 0 end
-- The first write needs no memory: see lease.lua.
redis.call('PEXPIRE', KEY.leader, ARGV[3])
redis.call('SET', KEY.leader, ARGV[2], 'PX', ARGV[3])
return 1
