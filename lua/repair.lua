-- repair: mend one fault of one id, if it is still there.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed
--#keys morgue dead aside states statesx progress journal journalx urgent out
-- ARGV  1 channel that wakes the owner  2 kind of the fault, see audit.go  3 id
--       4 for damaged-record: jobs, parked or morgue  5 and the record as read
--       4 for journal-entry and journal-count: the id of the entry, or of the last entry  5 the counter
--       that the caller has read  6 its right value
--       4 for follow-up-damaged  the id of the entry  5 the fault's text
-- Returns 1, or 0 if the fault is gone or a flight prevents the repair.
-- Keeps I1, because it leaves flights alone, and I2, because it deletes no payload: an unreadable record
-- or follow-up moves to the hash aside.
--#include record
--#include sound
--#include spill
--#include urgent
--#include enqueue
--#include held
local id = ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HGET', KEY.jobs, id)
local flies = redis.call('LPOS', KEY.flight, id) and true or false
local timed = {KEY.due, KEY.retry, KEY.blocked}

local function times(list) return #redis.call('LPOS', list, id, 'COUNT', 0) end

-- leave takes the id out of a set, or out of a list except for its first entries. It returns the number
-- of removed entries.
local function leave(list, keep)
  local n = times(list) - (keep or 0)
  if n <= 0 then return 0 end
  return redis.call('LREM', list, -n, id)
end

-- elsewhere returns the number of places of the id besides ready.
local function elsewhere()
  local n = times(KEY.suspects) + (flies and 1 or 0) + (in_line(id) and 1 or 0)
  for _, key in ipairs(timed) do
    if redis.call('ZSCORE', key, id) then n = n + 1 end
  end
  return n
end

-- passed reports whether an entry of the id in ready is left over for the pop to skip: see push.lua and lib/urgent.lua.
local function passed()
  return redis.call('HEXISTS', KEY.stale, id) == 1 and elsewhere() > 0 and times(KEY.ready) > 0
end

local function leave_all(but)
  local n = redis.call('HDEL', KEY.stale, id)
  for _, key in ipairs({KEY.ready, KEY.suspects}) do n = n + leave(key, key == but and 1 or 0) end
  for _, key in ipairs(timed) do
    if key ~= but then n = n + redis.call('ZREM', key, id) end
  end
  if but ~= KEY.urgent and in_line(id) then n = n + redis.call('ZADD', KEY.urgent, 'CH', -1, id) end
  return n
end

local function places() return times(KEY.ready) + elsewhere() - (passed() and 1 or 0) end

-- wait puts an id where its record says that it waits.
local function wait(job)
  enqueue(KEY.ready, job.retry >= 0 and KEY.retry or KEY.due, id, job.at, now)
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
  redis.call('HDEL', KEY.jobs, id)
  redis.call('HINCRBY', KEY.count, 'tombs', -1)
  return true
end

-- If the id has several places, it keeps the place that a handler or a person relies on, else the place of
-- the record.
mend['two-places'] = function()
  if not record or record ~= 'x' and places() < 2 then return false end
  if flies then return leave_all() > 0 end
  local job = head_if(record)
  local set = job and (job.retry >= 0 and KEY.retry or KEY.due)
  local keep = KEY.ready
  if record == 'x' then
    if places() > 0 and times(KEY.ready) == 0 then redis.call('RPUSH', KEY.ready, id) end
  elseif times(KEY.suspects) > 0 then
    keep = KEY.suspects
  elseif redis.call('ZSCORE', KEY.blocked, id) then
    keep = KEY.blocked
  elseif in_line(id) then
    keep = KEY.urgent
  elseif times(KEY.ready) == 0 or job and job.at > now and redis.call('ZSCORE', set, id) then
    keep = set
  end
  return keep and leave_all(keep) > 0
end

mend['stale-mark'] = function()
  return not passed() and redis.call('HDEL', KEY.stale, id) == 1
end

mend['wrong-time'] = function()
  local job = record and not flies and head_if(record)
  if not job then return false end
  local wrong = false
  for _, key in ipairs({KEY.due, KEY.retry}) do
    local at = redis.call('ZSCORE', key, id)
    if at and (tonumber(at) ~= job.at or (key == KEY.retry) ~= (job.retry >= 0)) then
      wrong = true
      redis.call('ZREM', key, id)
    end
  end
  if wrong and places() == 0 then
    redis.call('ZADD', job.retry >= 0 and KEY.retry or KEY.due, string.format('%.0f', job.at), id)
  end
  return wrong
end

mend['parked-alone'] = function()
  local parked = redis.call('HGET', KEY.parked, id)
  if not parked or flies or not head_if(parked) then return false end
  if record and record ~= 'x' then
    if not head_if(record) or string.byte(record, 1) == 115 and string.byte(parked, 1) == 115 then return false end
    local readable, job = pcall(parse, record)
    local readable_too, other = pcall(parse, parked)
    if not readable or not readable_too then return false end
    redis.call('HDEL', KEY.parked, id)
    if string.byte(record, 1) == 115 then
      spill_behind(KEY.spill, KEY.spillx, 'w', id, job, other)
      record = head('s', job)
    else
      record = spill_join(KEY.spill, KEY.spillx, 'w', id, job, parked)
    end
    redis.call('HSET', KEY.jobs, id, record)
    return true
  end
  local readable, job = pcall(parse, parked)
  if not readable then return false end
  leave_all()
  if record then redis.call('HINCRBY', KEY.count, 'tombs', -1) end
  if string.byte(parked, 1) ~= 115 then parked = pack(job) end
  unpark(KEY.jobs, KEY.ready, KEY.due, KEY.parked, id, parked, now)
  return true
end

-- mark_late marks the id if its job has failed and is due, else removes the mark. It reports whether that
-- changed anything.
local function mark_late()
  local record = redis.call('HGET', KEY.jobs, id)
  local job = record and record ~= 'x' and head_if(record)
  local turn = times(KEY.ready) + times(KEY.suspects) + (in_line(id) and 1 or 0) - (passed() and 1 or 0) > 0
  if job and job.retry >= 0 and turn and not flies then return redis.call('HSETNX', KEY.late, id, 1) == 1 end
  return redis.call('HDEL', KEY.late, id) == 1
end

mend['late-mark'] = mark_late

mend['urgent-mark'] = function()
  return (not record or record == 'x') and redis.call('ZREM', KEY.urgent, id) == 1
end

-- mark_postponed stores since when a postponed id has waited, or removes the mark. It reports whether that
-- changed anything.
local function mark_postponed()
  local record = redis.call('HGET', KEY.jobs, id)
  local job = record and record ~= 'x' and head_if(record)
  local waits = not flies and not redis.call('ZSCORE', KEY.blocked, id) and places() > 0
  local since = job and job.since and waits and job.at < held_at and string.format('%.0f', job.since)
  local was = redis.call('ZSCORE', KEY.postponed, id)
  if not since then return redis.call('ZREM', KEY.postponed, id) == 1 end
  redis.call('ZADD', KEY.postponed, since, id)
  return not was or was + 0 ~= since + 0
end

mend['postponed-mark'] = mark_postponed

mend['suspect-uncounted'] = function()
  return redis.call('LPOS', KEY.suspects, id) and redis.call('HSETNX', KEY.crashes, id, 0) == 1
end

mend['crash-left'] = function()
  return not flies and not redis.call('LPOS', KEY.suspects, id) and redis.call('HDEL', KEY.crashes, id) == 1
end

mend['dead-unlisted'] = function()
  local dead = redis.call('HGET', KEY.morgue, id)
  local job = dead and head_if(dead)
  return job and not redis.call('ZSCORE', KEY.dead, id) and redis.call('ZADD', KEY.dead, string.format('%.0f', job.at), id) == 1
end

mend['dead-unrecorded'] = function()
  return redis.call('HEXISTS', KEY.morgue, id) == 0 and redis.call('ZREM', KEY.dead, id) == 1
end

-- A state without a time is not deleted. It is kept as if it was written now.
mend['state-undated'] = function()
  return redis.call('HEXISTS', KEY.states, id) == 1 and not redis.call('ZSCORE', KEY.statesx, id)
    and redis.call('ZADD', KEY.statesx, string.format('%.0f', now), id) == 1
end

mend['state-left'] = function()
  return redis.call('HEXISTS', KEY.states, id) == 0 and redis.call('ZREM', KEY.statesx, id) == 1
end

mend['note-left'] = function()
  return not flies and redis.call('HDEL', KEY.progress, id) == 1
end

--#include set_aside

mend['damaged-record'] = function()
  local key = ({jobs = KEY.jobs, parked = KEY.parked, morgue = KEY.morgue})[ARGV[4]]
  if redis.call('HGET', key, id) ~= ARGV[5] or flies and key == KEY.jobs then return false end
  set_aside(ARGV[4] .. ':' .. id, ARGV[5])
  redis.call('HDEL', key, id)
  if key == KEY.morgue then redis.call('ZREM', KEY.dead, id) end
  if key == KEY.jobs then leave_all() end
  return true
end

-- A follow-up becomes a line about the fault, and the length and the bytes of each name and value.
mend['follow-up-damaged'] = function()
  local entry = redis.call('XRANGE', KEY.out, ARGV[4], ARGV[4])[1]
  if not entry then return false end
  local texts = {}
  for i, text in ipairs(entry[2]) do texts[i] = #text .. ':' .. text end
  set_aside('out:' .. ARGV[4], ARGV[5] .. '\n' .. table.concat(texts, ' '))
  redis.call('XDEL', KEY.out, ARGV[4])
  if redis.call('XLEN', KEY.out) == 0 then redis.call('DEL', KEY.out) end
  return true
end

mend['follow-up-number'] = function()
  local newest = redis.call('XREVRANGE', KEY.out, '+', '-', 'COUNT', 1)[1]
  local number = newest and string.match(newest[1], '^%d+')
  local said = tonumber(redis.call('HGET', KEY.count, 'out') or 0) or 0
  if not number or said >= tonumber(number) then return false end
  redis.call('HSET', KEY.count, 'out', number)
  return true
end

mend['journal-entry'] = function()
  local entry = redis.call('XRANGE', KEY.journal, ARGV[4], ARGV[4])[1]
  if not entry then return false end
  for i = 1, #entry[2], 2 do
    local n = entry[2][i] == 'n' and tonumber(entry[2][i + 1])
    if n and redis.call('LREM', KEY.journalx, 1, ARGV[4] .. ' ' .. entry[2][i + 1]) == 1 then
      redis.call('HINCRBY', KEY.count, 'runs', string.format('%.0f', -n))
    end
  end
  return redis.call('XDEL', KEY.journal, ARGV[4]) == 1
end

mend['journal-count'] = function()
  local last = redis.call('XREVRANGE', KEY.journal, '+', '-', 'COUNT', 1)[1]
  if (last and last[1] or '') ~= ARGV[4] or (redis.call('HGET', KEY.count, 'runs') or '') ~= ARGV[5] then return false end
  redis.call('HSET', KEY.count, 'runs', ARGV[6])
  redis.call('DEL', KEY.journalx)
  if last then redis.call('RPUSH', KEY.journalx, ARGV[4] .. ' ' .. ARGV[6]) end
  return true
end

if not mend[ARGV[2]]() then return 0 end
mark_late()
mark_postponed()
if redis.call('HEXISTS', KEY.jobs, id) == 0 then redis.call('ZREM', KEY.urgent, id) end
-- A crash count of an id that is neither in flight nor in quarantine would stop the shard.
if not flies and not redis.call('LPOS', KEY.suspects, id) then redis.call('HDEL', KEY.crashes, id) end
redis.call('PUBLISH', ARGV[1], '0')
return 1
