-- run_now: make ids due now. A call applies to ids that are not held, to held ids, or to ids that their group has
-- postponed. Blocked ids stay blocked. A postponed id keeps the time since which it has waited.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
-- ARGV  1 not used, see kill.lua  2 '': ids that are not held; held: held ids; group: ids that their group has
--       postponed  3 channel that wakes the owner  then ids (at most 1,000)
-- Returns {ids that were not due yet, ids that this call has looked at, 0}; see lib/measure.lua. Damaged records stay
--         as they are.
--#include record
--#include spill
--#include waiting
--#include measure
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked = 0, 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if record then weigh(1, #record) end
  local timed = not busy and (redis.call('ZSCORE', KEY.due, id) or redis.call('ZSCORE', KEY.retry, id))
  if not is_held(timed) == (ARGV[2] == 'held') then record, timed = false, false end
  local readable, job
  if record and (timed or busy and ARGV[2] ~= 'group') then readable, job = pcall(parse, record) end
  if readable and (timed or job.at > now) and (ARGV[2] ~= 'group' or job.since and job.group == 1) then
    if timed and redis.call('ZREM', KEY.due, id) == 0 then redis.call('ZREM', KEY.retry, id) end
    job.at = now
    redis.call('HSET', busy and KEY.parked or KEY.jobs, id, string.byte(record, 1) == 115 and head('s', job) or pack(job))
    if timed then
      line_up(id, now)
      if job.retry >= 0 then redis.call('HSET', KEY.late, id, 1) end
      if job.since then redis.call('ZADD', KEY.postponed, string.format('%.0f', job.since), id) end
    end
    count = count + 1
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
if count > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return {count, looked, 0}
