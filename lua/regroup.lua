-- regroup: ids of this shard that their groups have put off were made due under another rule of groups.
--
--#keys claim count
-- ARGV  1 instance  2 fence  3 the rule, '' if the queue has none
-- Returns 1. Field groups of count says by which rule that was done last: who claims the shard, and goes by another, does it again.
-- Errors: FENCED holder fence
--#include claimed
redis.call('HSET', KEY.count, 'groups', ARGV[3])
return 1
