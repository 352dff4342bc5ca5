-- Included after lib/spill.lua and lib/measure.lua. Expects KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx.

-- forget deletes the morgue record of an id, or a piece of it if it is crowded. It returns the number of
-- deleted payloads, and whether more are left. The number is unknown for a damaged record.
local function forget(id, record)
  weigh_record(record)
  local sound, job = pcall(parse, record)
  local crowded, gone = string.byte(record, 1) == 115, sound and job.n or 0
  if crowded then
    if not sound then job = {bytes = math.huge} end
    local piece = spill_take(KEY.spill, KEY.spillx, 'm', id, job) -- the first write frees memory: see lease.lua
    weigh(piece.n, piece.bytes)
    gone = piece.n
  end
  local more = crowded and job.n ~= 0
  if more then
    if sound then redis.call('HSET', KEY.morgue, id, head('s', job)) end
  else
    redis.call('HDEL', KEY.morgue, id)
    redis.call('ZREM', KEY.dead, id)
  end
  redis.call('HINCRBY', KEY.count, 'morgue', -gone)
  return gone, more
end
