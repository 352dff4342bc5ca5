-- Drops a job that was written down.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, the number, how many payloads to delete at most
-- Returns   1 if it is gone, 0 if more payloads must be deleted; then run it again
-- Errors    TAKENOVER: another run has begun since
local P, n, pile = KEYS[1], ARGV[2], KEYS[1] .. ':migrate:backpayloads:' .. ARGV[2]
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
if redis.call('ZCARD', pile) > tonumber(ARGV[3]) then
  redis.call('ZREMRANGEBYRANK', pile, 0, ARGV[3] - 1)
  return 0
end
redis.call('DEL', pile)
redis.call('DEL', P .. ':migrate:back:' .. n)
redis.call('ZREM', P .. ':migrate:backs', n)
return 1
