-- run_now: these ids are due now, whatever they waited for. Blocked ids stay blocked, held ones held; or held ids are
-- released, or those that their group has put off, and no others. Ids that were put off have waited since before.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed
-- ARGV  1 as in kill.lua, not used  2 held: of held ids, group: of ids that their group has put off, '' of all that are not held  3 channel that wakes the owner  then ids (at most 1,000)
-- Returns {the number of ids that were not due yet, of how many this call was, 0}; see lib/measure.lua. A damaged record is left alone.
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
      line_up(id)
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
