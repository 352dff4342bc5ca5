-- nack: put ids of flights back: failed (a retry is spent), postponed or returned (none is).
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx
--       10 late  11 due  12 retry  13 count  14 attempts
-- ARGV  1 instance  2 fence  then per id: flight, id, kind, retry count, delay us, error, its line
--       kind: retry (due after the delay, with this retry count and error), postpone (due after
--       the delay, the rest stays), return (no handler saw it: to the head, nothing changes)
--       its line: the one that says most, for the list of attempts
-- Returns {the number of ids that were in their flight until now, of how many this call was}; see lib/measure.lua.
-- Errors: FENCED holder fence
-- Keeps I2, and I3: what was pushed meanwhile is merged, equal payloads with the smallest score;
-- retry count, error and due time are those of the flight.
--#include claimed
--#include take_out
--#include enqueue
--#include record
--#include spill
--#include measure
--#include recover
--#include attempt
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local put, failed, looked = 0, 0, 0

local function put_back(id, kind, retry, delay, err, line)
  local record = redis.call('HGET', KEYS[2], id)
  if not record then return end
  weigh_record(record)
  if kind == 'return' then
    back(id, record)
    to_head(id, record)
    return
  end
  local job = parse(record)
  job.at = now + delay
  if kind == 'retry' then
    job.retry, job.err, failed = retry, err, failed + 1
    attempt(now, id, retry, 'failed', ARGV[1], line)
  end
  redis.call('HSET', KEYS[2], id, reunite(id, job))
  enqueue(KEYS[3], job.retry >= 0 and KEYS[12] or KEYS[11], id, job.at, now)
  if job.retry >= 0 and job.at <= now then redis.call('HSET', KEYS[10], id, 1) end
end

for p = 3, #ARGV, 7 do
  local kind = ARGV[p + 2]
  local ids = take_out(KEYS[4], kind ~= 'return' and KEYS[6] or nil, ARGV[p], {ARGV[p + 1]})
  if ids[1] then
    put = put + 1
    put_back(ids[1], kind, tonumber(ARGV[p + 3]), tonumber(ARGV[p + 4]), ARGV[p + 5], ARGV[p + 6])
  end
  looked = looked + 1
  weigh_id(redis.call('LLEN', KEYS[4]))
  if enough() then break end
end
if failed > 0 then redis.call('HINCRBY', KEYS[13], 'failed', failed) end
note_attempts(KEYS[14])
return {put, looked}
