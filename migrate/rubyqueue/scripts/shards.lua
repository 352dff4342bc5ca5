-- Finds the shards that have a key.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the key's name up to the shard, the first shard, the shard after the last
-- Returns   the shards in order
local found = {}
for shard = tonumber(ARGV[2]), tonumber(ARGV[3]) - 1 do
  if redis.call('EXISTS', KEYS[1] .. ':' .. ARGV[1] .. shard) == 1 then found[#found + 1] = shard end
end
return found
