-- Removes ids without data from the set of a shard or from its processing hashes.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, the shard, then ids
-- Returns   how many of the ids stay, because they have data
-- Errors    TAKENOVER: another run has begun since
local P, shard, left = KEYS[1], ARGV[2], 0
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
for i = 3, #ARGV do
  local id = ARGV[i]
  if redis.call('ZSCORE', P .. ':ids_scored_by_perform_in:' .. shard, id) then
    if redis.call('ZSCORE', P .. ':all_ids_scored_by_perfrom_in', id) or redis.call('EXISTS', P .. ':payloads:' .. id) == 1 then
      left = left + 1
    else
      redis.call('ZREM', P .. ':ids_scored_by_perform_in:' .. shard, id)
    end
  end
  if redis.call('HEXISTS', P .. ':processing:ids_with_perform_in:' .. shard, id) == 1 and redis.call('EXISTS', P .. ':processing:payloads:' .. id) == 0 then
    redis.call('HDEL', P .. ':processing:ids_with_perform_in:' .. shard, id)
    redis.call('HDEL', P .. ':processing:ids_with_retry_count:' .. shard, id)
    redis.call('HDEL', P .. ':processing:errors:' .. shard, id)
  end
end
return left
