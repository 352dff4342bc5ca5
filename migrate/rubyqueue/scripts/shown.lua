-- The data of entries and ids, in the form in which the scripts that begin with this answer. They answer until the answer has "most"
-- bytes, which they set, and at least one entry.
local most

-- A pile is answered as the number of its payloads, and the first payloads with their scores: at least one, and more while the answer
-- is below "most" bytes. Payloads that are not answered count as if they were as large as those that are, because the caller reads
-- them afterwards and keeps them.
local FIRST = 16
local oldest = {} -- first payloads of piles in flight, which evidence has read
local size = 0
local function pile(key)
  local members, count, bytes, n = {}, redis.call('ZCARD', key), 0, 0
  while n < count and n < FIRST and (n == 0 or size + bytes < most) do
    local one = n == 0 and oldest[key] or redis.call('ZRANGE', key, n, n, 'WITHSCORES') -- one at a time, because any may be large
    members[2 * n + 1], members[2 * n + 2] = one[1], one[2]
    n, bytes = n + 1, bytes + #one[1]
  end
  if n > 0 then size = size + bytes * count / n end
  return {count, members}
end

-- shown is the answer for one id: number, kind, id; the row that waits (due time, retry count, error) and
-- its pile; the row in flight (shard, due time, retry count, error), whether its oldest payload lies in the
-- morgue, the morgue's time and error then, and its pile. Of the morgue: due time is that of the burial.
local function shown(n, kind, id, at, rc, err, waiting, shard, fat, frc, ferr, buried, mat, merr, flight)
  size = size + #(id or '') + #(err or '') + #(ferr or '') + #(merr or '')
  return {n, kind, id, at, rc, err, pile(waiting), shard, fat, frc, ferr, buried, mat, merr, shard and pile(flight) or false}
end

-- entry reads the entry with a number.
local function entry(P, n)
  local e = redis.call('HMGET', P .. ':migrate:entry:' .. n, 'kind', 'id', 'at', 'rc', 'error',
    'shard', 'fat', 'frc', 'ferr', 'buried', 'mat', 'merr')
  return shown(n, e[1], e[2], e[3], e[4], e[5], P .. ':migrate:payloads:' .. n,
    e[6], e[7], e[8], e[9], e[10], e[11], e[12], P .. ':migrate:processing:' .. n)
end

-- flown finds the row in flight of an id among the shards in whose hashes it is: the first one, as Ruby
-- restores shards in order and the payloads have no shard in their name. None without payloads.
local function flown(P, id, shards)
  if shards == '' or redis.call('ZCARD', P .. ':processing:payloads:' .. id) == 0 then return false, false, false, false end
  for shard in string.gmatch(shards, '%d+') do
    local at = redis.call('HGET', P .. ':processing:ids_with_perform_in:' .. shard, id)
    if at then
      return shard, at, redis.call('HGET', P .. ':processing:ids_with_retry_count:' .. shard, id),
        redis.call('HGET', P .. ':processing:errors:' .. shard, id)
    end
  end
  return false, false, false, false
end

-- evidence is what the morgue says of the oldest payload in flight: whether it lies there, and since when.
local function evidence(P, id)
  if redis.call('EXISTS', P .. ':morgue:payloads:' .. id) == 0 then return false, false, false end
  local pile = P .. ':processing:payloads:' .. id
  oldest[pile] = redis.call('ZRANGE', pile, 0, 0, 'WITHSCORES')
  if not redis.call('ZSCORE', P .. ':morgue:payloads:' .. id, oldest[pile][1]) then return false, false, false end
  return '1', redis.call('ZSCORE', P .. ':morgue:all_ids_scored_by_updated_at', id), redis.call('HGET', P .. ':morgue:errors', id)
end
