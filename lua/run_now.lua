-- run_now: these ids are due now, whatever they waited for. Blocked ids stay blocked.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 late
-- ARGV  1 as in kill.lua, not used  2 channel that wakes the owner  then ids (at most 1,000)
-- Returns {the number of ids that were not due yet, of how many this call was, 0}; see lib/measure.lua. A damaged record is left alone.
--#include record
--#include spill
--#include waiting
--#include measure
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked = 0, 0
for i = 3, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if record then weigh(1, #record) end
  local timed = not busy and (redis.call('ZSCORE', KEYS[3], id) or redis.call('ZSCORE', KEYS[4], id))
  local readable, job
  if record and (busy or timed) then readable, job = pcall(parse, record) end
  if readable and (timed or job.at > now) then
    if timed and redis.call('ZREM', KEYS[3], id) == 0 then redis.call('ZREM', KEYS[4], id) end
    job.at = now
    redis.call('HSET', busy and KEYS[7] or KEYS[1], id, string.byte(record, 1) == 115 and head('s', job) or pack(job))
    if timed then
      line_up(id)
      if job.retry >= 0 then redis.call('HSET', KEYS[14], id, 1) end
    end
    count = count + 1
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
if count > 0 then redis.call('PUBLISH', ARGV[2], '0') end
return {count, looked, 0}
