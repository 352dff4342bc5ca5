-- Marks shards that have ids in flight, so that the mark shows whether a process of Ruby's takes or ends a batch there. Each pop of
-- Ruby's writes the marked field, and each end of a batch and each restore deletes it. Ruby reads the number before the mark only for
-- its dashboard.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the shards
-- Returns   1
local P = KEYS[1]
for i = 1, #ARGV do
  local n = redis.call('HGET', P .. ':processing_length_by_shard', ARGV[i]) or '0'
  if redis.call('EXISTS', P .. ':processing:ids_with_perform_in:' .. ARGV[i]) == 1 and not string.find(n, ' migrate', 1, true) then
    redis.call('HSET', P .. ':processing_length_by_shard', ARGV[i], n .. ' migrate')
  end
end
return 1
