-- Included after lib/spill.lua by what people do to waiting jobs. It leaves flights alone: of an id
-- in flight, what was parked is what waits.
-- Expects KEYS[1] jobs, KEYS[2] ready, KEYS[3] due, KEYS[4] retry, KEYS[5] blocked, KEYS[6] flight,
-- KEYS[7] parked, KEYS[8] crashes, KEYS[9] suspects, KEYS[10] count, KEYS[11] spill, KEYS[12] spillx,
-- KEYS[13] stale, KEYS[14] late: failed jobs whose turn has come, in ready or on probation.

-- waiting finds what waits for an id: its record (or false) and whether the id is in flight.
local function waiting(id)
  local busy = redis.call('LPOS', KEYS[6], id) and true or false
  local record = redis.call('HGET', busy and KEYS[7] or KEYS[1], id)
  if record == 'x' then record = false end
  return record, busy
end

-- apart says whether an id is scheduled, failed or blocked.
local function apart(id)
  return redis.call('ZSCORE', KEYS[3], id) or redis.call('ZSCORE', KEYS[4], id) or redis.call('ZSCORE', KEYS[5], id)
end

-- placed says whether an id waits in this place: '' = anywhere, ready, scheduled, retry, blocked, or
-- failed: it has failed and is neither in flight nor blocked, whether its turn has come or not.
local function placed(place, id, busy)
  if place == '' then return true end
  if place == 'failed' then
    if busy or redis.call('ZSCORE', KEYS[4], id) then return not busy end
    local record = redis.call('HGET', KEYS[1], id)
    return record and has_failed(record) and not redis.call('ZSCORE', KEYS[5], id)
  end
  local sets = {scheduled = KEYS[3], retry = KEYS[4], blocked = KEYS[5]}
  if sets[place] then return redis.call('ZSCORE', sets[place], id) end
  return not apart(id) and not busy
end

-- displace takes an id out of due, retry or blocked and says whether it was there. If not, its
-- turn comes anyhow: in the ready list, or on probation, which only an answer of its handler ends.
local function displace(id)
  return redis.call('ZREM', KEYS[3], id) == 1 or redis.call('ZREM', KEYS[4], id) == 1 or redis.call('ZREM', KEYS[5], id) == 1
end

-- line_up lets an id wait in the ready list. An entry that an earlier job of it has left there
-- (see push.lua) serves it where it stands: no id has two.
local function line_up(id)
  if redis.call('HDEL', KEYS[13], id) == 0 then redis.call('RPUSH', KEYS[2], id) end
end

-- begun says that a call before this one has counted the first id and moved a piece of it.
local function begun(i, first) return i == first and ARGV[1] == '1' end

-- remove deletes what waits for an id, of which no payload is in the spill. A list cannot lose an entry from its middle cheaply, so
-- a tombstone tells the pop to skip it.
local function remove(id, busy)
  if busy then
    redis.call('HDEL', KEYS[7], id)
    return
  end
  redis.call('HDEL', KEYS[14], id)
  local out = displace(id) or redis.call('HDEL', KEYS[8], id) == 1 and redis.call('LREM', KEYS[9], 1, id) == 1
  if out and redis.call('HDEL', KEYS[13], id) == 0 then
    redis.call('HDEL', KEYS[1], id)
  else
    redis.call('HSET', KEYS[1], id, 'x')
    redis.call('HINCRBY', KEYS[10], 'tombs', 1)
  end
end
