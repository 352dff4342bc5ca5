-- lease: renew an instance's lease. An expired lease can never be revived.
--
--#keys lease
-- ARGV  1 the lease's JSON  2 ttl ms
-- Returns 1, or 0 if the key is gone.
-- PEXPIRE comes first. A Redis that is out of memory refuses a script if its first write may need memory. A node must
-- keep its lease then, to drain the jobs that fill the memory.
if redis.call('PEXPIRE', KEY.lease, ARGV[2]) == 0 then return 0 end
redis.call('SET', KEY.lease, ARGV[1], 'PX', ARGV[2])
return 1
