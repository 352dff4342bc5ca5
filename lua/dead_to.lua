-- dead_to: store the queue that gets the dead payloads of this shard, by the rule `then`.
--
--#keys claim count
-- ARGV  1 instance  2 fence  3 the queue, '' without a rule
-- Returns 1. A claim stores the queue as well, so this script is for a rule that changes during the claim.
-- Errors: FENCED holder fence
--#include claimed
if ARGV[3] == '' then redis.call('HDEL', KEY.count, 'then') else redis.call('HSET', KEY.count, 'then', ARGV[3]) end
return 1
