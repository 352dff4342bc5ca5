-- Reads the data of ids without moving it.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      kind (job or morgue), how many bytes to answer at most, then for each id:
--           the id, and the shards in whose processing hashes it is, with commas
-- Returns   the data of the ids, see shown; fewer than given if the bytes reach their limit. "" for an
--           id that is gone.
local P, kind = KEYS[1], ARGV[1]
most = tonumber(ARGV[2])
local found = {}
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  if kind == 'morgue' then
    local at = redis.call('ZSCORE', P .. ':morgue:all_ids_scored_by_updated_at', id)
    found[#found + 1] = at and shown(0, kind, id, at, false, redis.call('HGET', P .. ':morgue:errors', id),
      P .. ':morgue:payloads:' .. id, false, false, false, false, false, false, false, '') or ''
  else
    local at = redis.call('ZSCORE', P .. ':all_ids_scored_by_perfrom_in', id)
    local shard, fat, frc, ferr = flown(P, id, ARGV[i + 1])
    if at or shard then
      local buried, mat, merr = false, false, false
      if shard then buried, mat, merr = evidence(P, id) end
      found[#found + 1] = shown(0, kind, id, at, at and redis.call('ZSCORE', P .. ':all_ids_scored_by_retry_count', id),
        at and redis.call('HGET', P .. ':errors', id), P .. ':payloads:' .. id,
        shard, fat, frc, ferr, buried, mat, merr, P .. ':processing:payloads:' .. id)
    else
      found[#found + 1] = ''
    end
  end
  if size >= most then break end
end
return found
