-- requeue: move payloads from the morgue to the queue, or unblock ids.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
--#keys morgue dead
-- ARGV  1 '1' if the call before this one began with the first id  2 from: morgue or blocked  3 channel that wakes the
--       owner  then ids (at most 1,000)
-- Returns {ids that were there, ids that this call has looked at, '1' if the call ended within an id and
--         more of its payloads are left}; see lib/measure.lua.
-- The jobs become new jobs that are due now, and keep their error. They merge with the waiting payloads
-- of their id; equal payloads get the smaller score. Merging drops no payload, so an id may exceed its
-- limits here (I2). Damaged records stay as they are.
--#include record
--#include sound
--#include spill
--#include waiting
--#include measure
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked, left = 0, 0, 0

-- revive stores the job of an id, due now.
local function revive(id, text, record, busy)
  local was_tombstone = not busy and redis.call('HGET', KEY.jobs, id) == 'x'
  redis.call('HSET', busy and KEY.parked or KEY.jobs, id, text)
  if busy then return end
  redis.call('HDEL', KEY.late, id) -- a new job has not failed
  redis.call('ZREM', KEY.postponed, id)
  if was_tombstone then
    redis.call('HINCRBY', KEY.count, 'tombs', -1)
  elseif not record or displace(id) or in_line(id) then
    line_up(id, now)
  end
end

local function fresh(job)
  job.retry, job.at, job.since = -1, now, nil
  return job
end

-- lead moves a piece of a crowded morgue record before all waiting payloads of the id, because it was
-- pushed before them (I3). It shifts the places of all pieces of a morgue record by the same distance,
-- and keeps that distance in the record. It returns the new record of the waiting job.
local function lead(id, dead, record, from)
  local piece = spill_take(KEY.spill, KEY.spillx, 'm', id, dead, moved_count)
  weigh(piece.n, piece.bytes)
  redis.call('HINCRBY', KEY.count, 'morgue', -piece.n)
  local job = record and parse(record) or {n = 0, bytes = 0, next = from, shift = 0, err = ''}
  if record and string.byte(record, 1) ~= 115 then spill_open(KEY.spill, KEY.spillx, 'w', id, job, from) end
  if dead.err ~= '' then job.err = dead.err end
  -- The million leaves room for payloads that are buried before the last piece has moved.
  if dead.shift == 0 then dead.shift = job.next + dead.next + 1000000 end
  for i = 1, piece.n do
    local key = piece.key[i]
    piece.key[i] = spill_key(string.sub(key, 1, 8), string.sub(key, 9) - dead.shift)
  end
  spill_put(KEY.spill, KEY.spillx, 'w', id, job, piece, true)
  job.next = math.max(job.next, dead.next + dead.shift)
  return head('s', fresh(job))
end

local function unblock(id, record, busy)
  local job = fresh(parse(record))
  revive(id, string.byte(record, 1) == 115 and head('s', job) or pack(job), record, busy)
end

local function raise(id, text, record, busy)
  local dead, from = parse(text), busy and spill_from(redis.call('HGET', KEY.jobs, id)) or 1
  local waits
  if string.byte(text, 1) == 115 then
    waits = lead(id, dead, record, from)
    left = dead.n > 0 and 1 or 0
  else
    weigh(dead.n, dead.bytes)
    redis.call('HINCRBY', KEY.count, 'morgue', -dead.n)
    waits = spill_join(KEY.spill, KEY.spillx, 'w', id, fresh(dead), record or nil, from)
  end
  if left == 1 then
    redis.call('HSET', KEY.morgue, id, head('s', dead))
  else
    redis.call('HDEL', KEY.morgue, id)
    redis.call('ZREM', KEY.dead, id)
  end
  revive(id, waits, record, busy)
end

for i = 4, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if record then weigh(1, #record) end
  if ARGV[2] == 'blocked' then
    if record and redis.call('ZSCORE', KEY.blocked, id) and readable(record) then
      count = count + 1
      unblock(id, record, busy)
    end
  else
    local dead = redis.call('HGET', KEY.morgue, id)
    if dead and readable(dead) and readable(record) then
      if not begun(i, 4) then count = count + 1 end
      raise(id, dead, record, busy)
      if left == 1 then break end
    end
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
if count + left > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return {count, looked, left}
