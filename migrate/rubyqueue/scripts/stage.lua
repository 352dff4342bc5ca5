-- Writes down a job that will go back, where no process of Ruby's looks: first its row, then its payloads, some at a time.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run; the number, or 0 for the next one; then "row", kind (job or morgue), id, due time or that of the burial, retry
--           count, '1' and the error or '0' and nothing; or "payloads", score and payload in turn
-- Returns   the number
-- Errors    TAKENOVER: another run has begun since
local P, n = KEYS[1], ARGV[2]
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
if ARGV[3] == 'row' then
  if n == '0' then n = redis.call('INCR', P .. ':migrate:number') end
  redis.call('HMSET', P .. ':migrate:back:' .. n, 'kind', ARGV[4], 'id', ARGV[5], 'at', ARGV[6], 'rc', ARGV[7])
  if ARGV[8] == '1' then redis.call('HSET', P .. ':migrate:back:' .. n, 'error', ARGV[9]) end
  redis.call('ZADD', P .. ':migrate:backs', n, n)
else
  for i = 4, #ARGV, 2 do redis.call('ZADD', P .. ':migrate:backpayloads:' .. n, ARGV[i], ARGV[i + 1]) end
end
return tonumber(n)
