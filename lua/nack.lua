-- nack: put ids of flights back, as failed, postponed, held or returned. Only a failure counts as a retry.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late due retry count journal journalx
--#keys progress since postponed urgent stale
-- ARGV  1 instance  2 fence  3 bounds of the journal, see lib/journal.lua
--       then per id: flight, id, kind, retry count, delay (us), error, line of the journal ('' for none)
--       kind: retry     due after the delay, with this retry count and error
--             postpone  due after the delay; retry count and error stay
--             group     as postpone; the handler has stopped the id's group
--             limited   as postpone; no handler saw it, because its group is at its limit. An id in quarantine
--                       stays there, as the last one, with its crashes
--             hold      held until a person releases it; retry count and error stay
--             return    no handler saw it; it goes back to the head unchanged
-- Returns {ids that were in their flight until now, ids that this call has looked at}. The caller sends
-- the other ids again; see lib/measure.lua.
-- Errors: FENCED holder fence
-- Keeps I2, and I3: payloads that were pushed meanwhile are merged, and equal payloads get the smaller
-- score. Retry count, error and due time are those of the flight. A postponed or held job keeps the
-- time at which it began to wait.
--#include claimed
--#include take_out
--#include urgent
--#include enqueue
--#include held
--#include record
--#include spill
--#include measure
--#include recover
--#include journal
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local put, failed, looked = 0, 0, 0
open_journal()
local noted = redis.call('EXISTS', KEY.progress) == 1

local function put_back(id, kind, retry, delay, err)
  local record = redis.call('HGET', KEY.jobs, id)
  if not record then
    redis.call('HDEL', KEY.crashes, id)
    return
  end
  weigh_record(record)
  if kind == 'return' or kind == 'limited' and redis.call('HEXISTS', KEY.crashes, id) == 1 then
    back(id, record)
    to_head(id, record, kind == 'limited')
    return
  end
  local job = parse(record)
  if kind == 'retry' then
    job.retry, job.err, failed = retry, err, failed + 1
    job.at, job.since = now + delay, nil
  else
    put_off(job, kind == 'hold' and held_at or now + delay, (kind == 'limited' or kind == 'group') and 1 or 0)
    if kind ~= 'hold' then redis.call('ZADD', KEY.postponed, string.format('%.0f', job.since), id) end
  end
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  enqueue(KEY.ready, job.retry >= 0 and KEY.retry or KEY.due, id, job.at, now)
  if job.retry >= 0 and job.at <= now then redis.call('HSET', KEY.late, id, 1) end
  if job.retry < 0 and job.at > now then redis.call('ZREM', KEY.since, id) end -- no push moves this due time: see coalesce.lua
end

for p = 4, #ARGV, 7 do
  local kind, line = ARGV[p + 2], ARGV[p + 6]
  local popped = claim['@' .. ARGV[p]]
  local answered = kind ~= 'return' and kind ~= 'limited'
  local ids = take_out(KEY.flight, answered and KEY.crashes or nil, ARGV[p], {ARGV[p + 1]})
  if ids[1] then
    put = put + 1
    if line ~= '' then journal((noted and journal_log(ids[1], popped) or '') .. line, 1) end
    if noted then redis.call('HDEL', KEY.progress, ids[1]) end
    put_back(ids[1], kind, tonumber(ARGV[p + 3]), tonumber(ARGV[p + 4]), ARGV[p + 5])
  end
  looked = looked + 1
  weigh_id(redis.call('LLEN', KEY.flight))
  if enough() then break end
end
if failed > 0 then redis.call('HINCRBY', KEY.count, 'failed', failed) end
close_journal(ARGV[1], now, ARGV[3])
return {put, looked}
