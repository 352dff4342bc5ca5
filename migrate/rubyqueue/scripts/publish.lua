-- Gives a job that was written down to Ruby, as a waiting job or into the morgue. It is united with the data that is there as by
-- Ruby's own push: of equal payloads the older score stays. The due time, the retry count and the error are those of the given job.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, the number, the id's shard, how many payloads to move at most, how many bytes of them
-- Returns   1 if all is moved, 0 if more payloads must be moved; then run it again
-- Errors    TAKENOVER: another run has begun since
local P, n, home, most, most_bytes = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
local e = redis.call('HMGET', P .. ':migrate:back:' .. n, 'kind', 'id', 'at', 'rc', 'error')
local kind, id, at, rc, err = unpack(e, 1, 5)
if not kind then return 1 end -- it was moved and the answer was lost
local M = kind == 'morgue' and P .. ':morgue' or P
local pile, home_pile = P .. ':migrate:backpayloads:' .. n, M .. ':payloads:' .. id
if not unite(pile, home_pile, most, most_bytes) then return 0 end
redis.call('ZADD', M .. ':all_ids_lex', 0, id)
if kind == 'morgue' then
  local later = redis.call('ZSCORE', M .. ':all_ids_scored_by_updated_at', id)
  if not later or tonumber(later) <= tonumber(at) then
    redis.call('ZADD', M .. ':all_ids_scored_by_updated_at', at, id)
    if err then redis.call('HSET', M .. ':errors', id, err) end
  end
else
  redis.call('ZADD', P .. ':all_ids_scored_by_perfrom_in', at, id)
  redis.call('ZADD', P .. ':all_ids_scored_by_retry_count', rc, id)
  redis.call('ZADD', P .. ':ids_scored_by_perform_in:' .. home, at, id)
  if err then redis.call('HSET', P .. ':errors', id, err) end
end
redis.call('HDEL', P .. ':migrate:kept', string.sub(kind, 1, 1) .. id)
redis.call('DEL', P .. ':migrate:back:' .. n)
redis.call('ZREM', P .. ':migrate:backs', n)
return 1
