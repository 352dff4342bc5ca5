-- Included after lib/spill.lua by scripts for people's changes to waiting jobs. They leave flights
-- alone. The waiting job of an id in flight is its parked payloads.
-- Expects KEY.jobs, KEY.ready, KEY.due, KEY.retry, KEY.blocked, KEY.flight,
-- KEY.parked, KEY.crashes, KEY.suspects, KEY.count, KEY.spill, KEY.spillx,
-- KEY.stale, KEY.urgent, KEY.postponed, KEY.late: failed jobs whose turn has come, in ready or in quarantine.
--#include held
--#include urgent

-- waiting returns the record of the waiting job of an id, or false, and whether the id is in flight.
-- '' is no id: see claim.lua.
local function waiting(id)
  if id == '' then return false, false end
  local busy = redis.call('LPOS', KEY.flight, id) and true or false
  local record = redis.call('HGET', busy and KEY.parked or KEY.jobs, id)
  if record == 'x' then record = false end
  return record, busy
end

-- apart reports whether an id is scheduled, failed or blocked.
local function apart(id)
  return redis.call('ZSCORE', KEY.due, id) or redis.call('ZSCORE', KEY.retry, id) or redis.call('ZSCORE', KEY.blocked, id)
end

-- placed reports whether an id waits in a place: ready, scheduled, retry, held, blocked, failed, or ''
-- for any place. A failed id is neither in flight, held nor blocked, and may be due already.
local function placed(place, id, busy)
  if place == '' then return true end
  if place == 'failed' then
    local score = redis.call('ZSCORE', KEY.retry, id)
    if busy or score then return not busy and not is_held(score) end
    local record = redis.call('HGET', KEY.jobs, id)
    return record and has_failed(record) and not redis.call('ZSCORE', KEY.blocked, id)
  end
  if place == 'held' then return is_held(redis.call('ZSCORE', KEY.due, id)) or is_held(redis.call('ZSCORE', KEY.retry, id)) end
  local sets = {scheduled = KEY.due, retry = KEY.retry, blocked = KEY.blocked}
  if sets[place] then
    local score = redis.call('ZSCORE', sets[place], id)
    return score and (place == 'blocked' or not is_held(score))
  end
  return not apart(id) and not busy
end

-- displace takes an id out of due, retry or blocked, and reports whether it was there. Other waiting ids
-- are in the line, or in quarantine, which only an answer of their handler ends.
local function displace(id)
  return redis.call('ZREM', KEY.due, id) == 1 or redis.call('ZREM', KEY.retry, id) == 1 or redis.call('ZREM', KEY.blocked, id) == 1
end

-- line_up puts an id that is due at a time (us) into the line, at the end unless it has a place there.
local function line_up(id, at)
  if not seat(id, at) then redis.call('RPUSH', KEY.ready, id) end
end

-- begun reports whether the call before this one has counted the first id and moved a piece of it.
local function begun(i, first) return i == first and ARGV[1] == '1' end

-- remove deletes the waiting job of an id that has no payloads in the spill. To remove an entry from the
-- middle of the ready list would be slow, so a tombstone tells the pop to skip it.
local function remove(id, busy)
  if busy then
    redis.call('HDEL', KEY.parked, id)
    redis.call('ZADD', KEY.urgent, 'XX', -1, id)
    return
  end
  local urgent = in_line(id)
  redis.call('HDEL', KEY.late, id)
  redis.call('ZREM', KEY.postponed, id)
  redis.call('ZREM', KEY.urgent, id)
  local out = urgent or displace(id) or redis.call('HDEL', KEY.crashes, id) == 1 and redis.call('LREM', KEY.suspects, 1, id) == 1
  if out and redis.call('HDEL', KEY.stale, id) == 0 then
    redis.call('HDEL', KEY.jobs, id)
  else
    redis.call('HSET', KEY.jobs, id, 'x')
    redis.call('HINCRBY', KEY.count, 'tombs', 1)
  end
end
