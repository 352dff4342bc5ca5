-- kill: what waits for these ids goes to the morgue; a flight goes on.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 morgue  15 dead
-- ARGV  1 '' or the place an id must be in: ready, scheduled, retry, blocked  2 what: all, or oldest (the payload
--       with the smallest score; the rest is fresh and due now; of ids that are scheduled, failed or blocked only, or
--       a repeated request would bury the next one)  3 channel that wakes the owner  then ids (at most 1,000)
-- Returns {the number of ids of which something was buried, of how many this call was}; see measure.lua.
-- Damaged records are left alone.
--#include record
--#include sound
--#include spill
--#include morgue
--#include waiting
--#include measure
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count, looked = 0, 0

local function smallest(job)
  local k = 1
  for i = 2, job.n do
    if lower(job.score[i], job.score[k]) then k = i end
  end
  return k
end

for i = 4, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  local meant = record and placed(ARGV[1], id, busy) and (ARGV[2] ~= 'oldest' or not busy and apart(id))
  if meant and readable(record) and readable(redis.call('HGET', KEYS[14], id)) then
    count = count + 1
    weigh(record)
    local job = spill_load(KEYS[11], KEYS[12], 'w', id, record)
    local data, score = job.data, job.score
    local keep = ARGV[2] == 'oldest' and job.n > 1
    if keep then
      local k = smallest(job)
      data, score = {table.remove(job.data, k)}, {table.remove(job.score, k)}
      job.n, job.bytes = job.n - 1, job.bytes - #data[1]
    end
    entomb(KEYS[14], KEYS[15], KEYS[10], KEYS[11], KEYS[12], id, data, score, job.retry, job.err, now)
    if keep then
      spill_drop(KEYS[11], KEYS[12], 'w', id, record)
      job.retry, job.at, job.err = -1, now, ''
      redis.call('HSET', busy and KEYS[7] or KEYS[1], id, spill_pack(KEYS[11], KEYS[12], 'w', id, job))
      if not busy and displace(id) then line_up(id) end
    else
      remove(id, record, busy)
    end
  end
  looked = looked + 1
  if enough() then break end
end
if count > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return {count, looked}
