-- Moves the data of ids to a place where no process of Ruby's looks, each id under the next number.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run that takes, kind (job or morgue), how many bytes to answer at most, then for each id:
--           the id, its shard, and the shards in whose processing hashes it is, with commas
-- Returns   the entries, see shown; fewer than given if the bytes reach their limit. "" for an id that
--           is gone.
-- Errors    TAKENOVER: another run has begun since. FLIGHT: a worker of Ruby's has touched a shard since it was marked, and nothing is taken
--
-- An id is moved whole or not at all, because its data is read before the first write. The piles are renamed, so that ten thousand
-- payloads cost as much as a single payload.
local P, kind = KEYS[1], ARGV[2]
most = tonumber(ARGV[3])
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end

for i = 4, #ARGV, 3 do
  for s in string.gmatch(ARGV[i + 2], '%d+') do
    local marked = redis.call('HGET', P .. ':processing_length_by_shard', s)
    if not (marked and string.find(marked, ' migrate', 1, true)) and redis.call('HEXISTS', P .. ':processing:ids_with_perform_in:' .. s, ARGV[i]) == 1 then
      return redis.error_reply('FLIGHT a worker of Ruby\'s Lowkiq has taken something of shard ' .. s)
    end
  end
end

local function move(from, to)
  if redis.call('EXISTS', from) == 1 then redis.call('RENAME', from, to) end
end

-- taken writes an entry with the fields that are there.
local function taken(...)
  local n = redis.call('INCR', P .. ':migrate:number')
  local fields, given = {}, {...}
  for i = 1, select('#', ...), 2 do
    if given[i + 1] then
      fields[#fields + 1] = given[i]
      fields[#fields + 1] = given[i + 1]
    end
  end
  redis.call('HMSET', P .. ':migrate:entry:' .. n, 'kind', kind, unpack(fields))
  redis.call('ZADD', P .. ':migrate:taken', n, n)
  return n
end

local function morgue(id)
  local lex, times, errors = P .. ':morgue:all_ids_lex', P .. ':morgue:all_ids_scored_by_updated_at', P .. ':morgue:errors'
  local at, _, err = redis.call('ZSCORE', times, id), redis.call('ZSCORE', lex, id), redis.call('HGET', errors, id)
  if not at then return '' end
  local n = taken('id', id, 'at', at, 'error', err)
  move(P .. ':morgue:payloads:' .. id, P .. ':migrate:payloads:' .. n)
  redis.call('ZREM', lex, id)
  redis.call('ZREM', times, id)
  redis.call('HDEL', errors, id)
  return entry(P, n)
end

local function job(id, home, shards)
  local lex, times, counts, errors = P .. ':all_ids_lex', P .. ':all_ids_scored_by_perfrom_in', P .. ':all_ids_scored_by_retry_count', P .. ':errors'
  local set = P .. ':ids_scored_by_perform_in:' .. home
  local at, _, rc, err, lies = redis.call('ZSCORE', times, id), redis.call('ZSCORE', lex, id), redis.call('ZSCORE', counts, id),
    redis.call('HGET', errors, id), redis.call('ZSCORE', set, id)
  local shard, fat, frc, ferr = flown(P, id, shards)
  if not at and not shard then return '' end
  local buried, mat, merr = false, false, false
  if shard then buried, mat, merr = evidence(P, id) end

  local n = taken('id', id, 'at', at, 'rc', at and rc, 'error', at and err, 'home', home, 'set', lies,
    'shard', shard, 'fat', fat, 'frc', frc, 'ferr', ferr, 'buried', buried, 'mat', mat, 'merr', merr)
  if at then
    move(P .. ':payloads:' .. id, P .. ':migrate:payloads:' .. n)
    redis.call('ZREM', lex, id)
    redis.call('ZREM', times, id)
    redis.call('ZREM', counts, id)
    redis.call('HDEL', errors, id)
    if lies then redis.call('ZREM', set, id) end
  end
  if shard then
    local pile, new = P .. ':processing:payloads:' .. id, P .. ':migrate:processing:' .. n
    move(pile, new)
    oldest[new] = oldest[pile]
    for s in string.gmatch(shards, '%d+') do
      redis.call('HDEL', P .. ':processing:ids_with_perform_in:' .. s, id)
      redis.call('HDEL', P .. ':processing:ids_with_retry_count:' .. s, id)
      redis.call('HDEL', P .. ':processing:errors:' .. s, id)
    end
  end
  return entry(P, n)
end

local found = {}
for i = 4, #ARGV, 3 do
  if kind == 'morgue' then found[#found + 1] = morgue(ARGV[i]) else found[#found + 1] = job(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  if size >= most then break end
end
return found
