-- repair: mend one fault of one id, if it is still there.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 late  15 morgue  16 dead  17 aside
-- ARGV  1 channel that wakes the owner  2 kind of the fault, see audit.go  3 id
--       4 for damaged-record: jobs, parked or morgue  5 and the record as read
-- Returns 1, or 0 if there is nothing to mend: the fault is gone, or a flight is in the way.
-- Keeps I1 (flights are left alone) and I2 (no payload is deleted: a record that cannot be read
-- moves to the hash aside).
--#include record
--#include sound
--#include spill
--#include enqueue
local id = ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HGET', KEYS[1], id)
local flies = redis.call('LPOS', KEYS[6], id) and true or false
local timed = {KEYS[3], KEYS[4], KEYS[5]}

local function times(list) return #redis.call('LPOS', list, id, 'COUNT', 0) end

-- leave takes the id out of a list but for its first entries, or out of a set; it says how many went.
local function leave(list, keep)
  local n = times(list) - (keep or 0)
  if n <= 0 then return 0 end
  return redis.call('LREM', list, -n, id)
end

-- passed says that one of the id's entries in ready is there to be passed over: see push.lua.
local function passed()
  return redis.call('HEXISTS', KEYS[13], id) == 1 and redis.call('ZSCORE', KEYS[3], id) and times(KEYS[2]) > 0
end

local function leave_all(but)
  local n = redis.call('HDEL', KEYS[13], id)
  for _, key in ipairs({KEYS[2], KEYS[9]}) do n = n + leave(key, key == but and 1 or 0) end
  for _, key in ipairs(timed) do
    if key ~= but then n = n + redis.call('ZREM', key, id) end
  end
  return n
end

local function places()
  local n = times(KEYS[2]) + times(KEYS[9]) + (flies and 1 or 0) - (passed() and 1 or 0)
  for _, key in ipairs(timed) do
    if redis.call('ZSCORE', key, id) then n = n + 1 end
  end
  return n
end

-- wait makes an id wait as its record says.
local function wait(job)
  if job.at <= now then
    redis.call('RPUSH', KEYS[2], id)
  else
    redis.call('ZADD', job.retry >= 0 and KEYS[4] or KEYS[3], string.format('%.0f', job.at), id)
  end
end

local mend = {}

mend['no-record'] = function()
  return not record and leave_all() > 0
end

mend['no-entry'] = function()
  local job = record and record ~= 'x' and head_if(record)
  if not job or places() > 0 then return false end
  wait(job)
  return true
end

mend['lone-tomb'] = function()
  if record ~= 'x' or places() > 0 then return false end
  redis.call('HDEL', KEYS[1], id)
  redis.call('HINCRBY', KEYS[10], 'tombs', -1)
  return true
end

-- Of several places it keeps the one that a handler or a person relies on, else the record's.
mend['two-places'] = function()
  if not record or record ~= 'x' and places() < 2 then return false end
  if flies then return leave_all() > 0 end
  local job = head_if(record)
  local set = job and (job.retry >= 0 and KEYS[4] or KEYS[3])
  local keep = KEYS[2]
  if record == 'x' then
    if places() > 0 and times(KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], id) end
  elseif times(KEYS[9]) > 0 then
    keep = KEYS[9]
  elseif redis.call('ZSCORE', KEYS[5], id) then
    keep = KEYS[5]
  elseif times(KEYS[2]) == 0 or job and job.at > now and redis.call('ZSCORE', set, id) then
    keep = set
  end
  return keep and leave_all(keep) > 0
end

mend['stale-mark'] = function()
  return not passed() and redis.call('HDEL', KEYS[13], id) == 1
end

mend['wrong-time'] = function()
  local job = record and not flies and head_if(record)
  if not job then return false end
  local wrong = false
  for _, key in ipairs({KEYS[3], KEYS[4]}) do
    local at = redis.call('ZSCORE', key, id)
    if at and (tonumber(at) ~= job.at or (key == KEYS[4]) ~= (job.retry >= 0)) then
      wrong = true
      redis.call('ZREM', key, id)
    end
  end
  if wrong and places() == 0 then
    redis.call('ZADD', job.retry >= 0 and KEYS[4] or KEYS[3], string.format('%.0f', job.at), id)
  end
  return wrong
end

mend['parked-alone'] = function()
  local parked = redis.call('HGET', KEYS[7], id)
  if not parked or flies or not head_if(parked) then return false end
  if record and record ~= 'x' then
    if not head_if(record) or string.byte(record, 1) == 115 and string.byte(parked, 1) == 115 then return false end
    local readable, job = pcall(parse, record)
    local readable_too, other = pcall(parse, parked)
    if not readable or not readable_too then return false end
    redis.call('HDEL', KEYS[7], id)
    if string.byte(record, 1) == 115 then
      spill_behind(KEYS[11], KEYS[12], 'w', id, job, other)
      record = head('s', job)
    else
      record = spill_join(KEYS[11], KEYS[12], 'w', id, job, parked)
    end
    redis.call('HSET', KEYS[1], id, record)
    return true
  end
  local readable, job = pcall(parse, parked)
  if not readable then return false end
  leave_all()
  if record then redis.call('HINCRBY', KEYS[10], 'tombs', -1) end
  if string.byte(parked, 1) ~= 115 then parked = pack(job) end
  unpark(KEYS[1], KEYS[2], KEYS[3], KEYS[7], id, parked, now)
  return true
end

-- mark_late marks the id if its record has failed and its turn has come, else takes the mark away. It says whether that
-- changed anything.
local function mark_late()
  local record = redis.call('HGET', KEYS[1], id)
  local job = record and record ~= 'x' and head_if(record)
  local turn = times(KEYS[2]) + times(KEYS[9]) - (passed() and 1 or 0) > 0
  if job and job.retry >= 0 and turn and not flies then return redis.call('HSETNX', KEYS[14], id, 1) == 1 end
  return redis.call('HDEL', KEYS[14], id) == 1
end

mend['late-mark'] = mark_late

mend['suspect-uncounted'] = function()
  return redis.call('LPOS', KEYS[9], id) and redis.call('HSETNX', KEYS[8], id, 0) == 1
end

mend['crash-left'] = function()
  return not flies and not redis.call('LPOS', KEYS[9], id) and redis.call('HDEL', KEYS[8], id) == 1
end

mend['dead-unlisted'] = function()
  local dead = redis.call('HGET', KEYS[15], id)
  local job = dead and head_if(dead)
  return job and not redis.call('ZSCORE', KEYS[16], id) and redis.call('ZADD', KEYS[16], string.format('%.0f', job.at), id) == 1
end

mend['dead-unrecorded'] = function()
  return redis.call('HEXISTS', KEYS[15], id) == 0 and redis.call('ZREM', KEYS[16], id) == 1
end

mend['damaged-record'] = function()
  local key = ({jobs = KEYS[1], parked = KEYS[7], morgue = KEYS[15]})[ARGV[4]]
  if redis.call('HGET', key, id) ~= ARGV[5] or flies and key == KEYS[1] then return false end
  local field = ARGV[4] .. ':' .. id
  while redis.call('HEXISTS', KEYS[17], field) == 1 do field = field .. '+' end
  redis.call('HSET', KEYS[17], field, ARGV[5])
  redis.call('HDEL', key, id)
  if key == KEYS[15] then redis.call('ZREM', KEYS[16], id) end
  if key == KEYS[1] then leave_all() end
  return true
end

if not mend[ARGV[2]]() then return 0 end
mark_late()
-- Crashes that are counted of an id that is neither in flight nor on probation would stop the shard.
if not flies and not redis.call('LPOS', KEYS[9], id) then redis.call('HDEL', KEYS[8], id) end
redis.call('PUBLISH', ARGV[1], '0')
return 1
