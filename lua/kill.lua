-- kill: bury the waiting payloads of ids. Flights go on.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
--#keys morgue dead reply out
-- ARGV  1 '1' if the call before this one began with the first id  2 '' or the place an id must be in: ready,
--       scheduled, retry, blocked, failed  3 what: all, or oldest: the payload with the smallest score; the
--       rest becomes a new job that is due now. oldest applies only to ids that are scheduled, failed or
--       blocked: a repeated request finds the id ready, and does not bury its next payload.
--       4 channel that wakes the owner  then ids (at most 1,000)
-- Returns {ids with buried payloads, ids that this call has looked at, '1' if the call ended within an id
--         and more of its payloads are left}; see lib/measure.lua.
-- Damaged records stay as they are.
--#include record
--#include sound
--#include spill
--#include measure
--#include morgue
--#include waiting
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked = 0, 0

-- some takes the payloads that this call buries out of a job.
local function some(id, job, crowded)
  local one = ARGV[3] == 'oldest'
  if crowded then return spill_take(KEY.spill, KEY.spillx, 'w', id, job, one and 1 or moved_count) end
  if one then return oldest(job) end
  local all = {n = job.n, bytes = job.bytes, data = job.data, score = job.score}
  job.n = 0
  return all
end

local left = 0
for i = 5, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  local meant = record and placed(ARGV[2], id, busy) and (ARGV[3] ~= 'oldest' or not busy and apart(id))
  if meant and readable(record) and readable(redis.call('HGET', KEY.morgue, id)) then
    if not begun(i, 5) then count = count + 1 end
    local job, crowded = parse(record), string.byte(record, 1) == 115
    local piece = some(id, job, crowded)
    weigh(piece.n, piece.bytes)
    bury_payloads(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, id, piece, job.retry, job.err, now)
    if job.n == 0 then
      remove(id, busy)
    else
      if ARGV[3] == 'oldest' then
        job.retry, job.at = -1, now
        if displace(id) then line_up(id, now) end
        if job.since then redis.call('ZADD', KEY.postponed, string.format('%.0f', job.since), id) end
      else
        left = 1
      end
      redis.call('HSET', busy and KEY.parked or KEY.jobs, id, crowded and head('s', job) or pack(job))
      if left == 1 then break end
    end
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
if count > 0 then redis.call('PUBLISH', ARGV[4], '0') end
return {count, looked, left}
