-- Puts an entry back as Ruby had it. Payloads that were pushed meanwhile are united with it as by Ruby's own push: of equal payloads
-- the older score stays, and so do the due time and the retry count.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, the number, how many payloads to move at most, how many bytes of them
-- Returns   1 if all is back, 0 if more payloads must be moved; then run it again
-- Errors    TAKENOVER: another run has begun since. FLIGHT: a worker of Ruby's has taken the id
local P, n, most, most_bytes = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
local e = redis.call('HMGET', P .. ':migrate:entry:' .. n, 'kind', 'id', 'at', 'rc', 'error', 'home', 'set', 'shard', 'fat', 'frc', 'ferr')
local kind, id, at, rc, err, home, set, shard, fat, frc, ferr = unpack(e, 1, 11)
if not kind then return 1 end -- it is back and the answer was lost
local M = kind == 'morgue' and P .. ':morgue' or P
local flight = P .. ':processing:payloads:' .. id
if shard and redis.call('EXISTS', flight) == 1 then
  return redis.error_reply('FLIGHT a worker of Ruby\'s Lowkiq has taken ' .. id)
end

if at then
  local pile, home_pile = P .. ':migrate:payloads:' .. n, M .. ':payloads:' .. id
  if not unite(pile, home_pile, most, most_bytes) then return 0 end
  redis.call('ZADD', M .. ':all_ids_lex', 0, id)
  if kind == 'morgue' then
    local later = redis.call('ZSCORE', M .. ':all_ids_scored_by_updated_at', id)
    if not later then
      redis.call('ZADD', M .. ':all_ids_scored_by_updated_at', at, id)
      if err then redis.call('HSET', M .. ':errors', id, err) end
    end
  else
    redis.call('ZADD', P .. ':all_ids_scored_by_perfrom_in', at, id)
    if rc then redis.call('ZADD', P .. ':all_ids_scored_by_retry_count', rc, id) end
    if err then redis.call('HSET', P .. ':errors', id, err) end
    if set or redis.call('ZSCORE', P .. ':ids_scored_by_perform_in:' .. home, id) then
      redis.call('ZADD', P .. ':ids_scored_by_perform_in:' .. home, at, id)
    end
  end
end
if shard then
  redis.call('RENAME', P .. ':migrate:processing:' .. n, flight)
  redis.call('HSET', P .. ':processing:ids_with_perform_in:' .. shard, id, fat)
  if frc then redis.call('HSET', P .. ':processing:ids_with_retry_count:' .. shard, id, frc) end
  if ferr then redis.call('HSET', P .. ':processing:errors:' .. shard, id, ferr) end
end
redis.call('DEL', P .. ':migrate:entry:' .. n)
redis.call('ZREM', P .. ':migrate:taken', n)
return 1
