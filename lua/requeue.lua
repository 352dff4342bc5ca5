-- requeue: payloads leave the morgue for the queue, or blocked ids wait no longer.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 morgue  15 dead
-- ARGV  1 from: morgue or blocked  2 channel that wakes the owner  then ids (at most 1,000)
-- Returns {the number of ids that were there, of how many this call was}; see measure.lua.
-- They are fresh and due now, with what waits already: equal payloads are one, with the smallest
-- score. Merging drops nothing, so an id may exceed its limits here (I2). Damaged
-- records are left alone.
--#include record
--#include sound
--#include spill
--#include waiting
--#include measure
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked = 0, 0

-- revive makes the id's waiting job fresh and due now.
local function revive(id, job, record, busy)
  spill_drop(KEYS[11], KEYS[12], 'w', id, record)
  job.retry, job.at, job.err = -1, now, ''
  local entombed = not busy and redis.call('HGET', KEYS[1], id) == 'x'
  redis.call('HSET', busy and KEYS[7] or KEYS[1], id, spill_pack(KEYS[11], KEYS[12], 'w', id, job))
  if busy then return end
  if entombed then
    redis.call('HINCRBY', KEYS[10], 'tombs', -1)
  elseif not record or displace(id) then
    line_up(id)
  end
end

for i = 3, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if ARGV[1] == 'blocked' then
    if record and redis.call('ZSCORE', KEYS[5], id) and readable(record) then
      count = count + 1
      weigh(record)
      revive(id, spill_load(KEYS[11], KEYS[12], 'w', id, record), record, busy)
    end
  else
    local dead = redis.call('HGET', KEYS[14], id)
    if dead and readable(dead) and readable(record) then
      count = count + 1
      weigh(dead)
      if record then weigh(record) end
      local job = spill_load(KEYS[11], KEYS[12], 'm', id, dead)
      redis.call('HINCRBY', KEYS[10], 'morgue', -job.n)
      spill_drop(KEYS[11], KEYS[12], 'm', id, dead)
      redis.call('HDEL', KEYS[14], id)
      redis.call('ZREM', KEYS[15], id)
      if record then job = merge(job, spill_load(KEYS[11], KEYS[12], 'w', id, record)) end -- what was buried was pushed before (I3)
      revive(id, job, record, busy)
    end
  end
  looked = looked + 1
  if enough() then break end
end
if count > 0 then redis.call('PUBLISH', ARGV[2], '0') end
return {count, looked}
