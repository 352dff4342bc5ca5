-- regroup: store the rule of groups of this shard, after its ids that an earlier rule postponed are due.
--
--#keys claim count
-- ARGV  1 instance  2 fence  3 the rule, '' without a rule, '?' while some nodes may have another rule
-- Returns 1. Field groups of count is the rule. A new owner with another rule makes postponed ids due again.
-- Errors: FENCED holder fence
--#include claimed
redis.call('HSET', KEY.count, 'groups', ARGV[3])
return 1
