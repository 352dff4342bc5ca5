-- bury: ids of flights ran out of retries.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx
--       10 late  11 morgue  12 dead  13 count  14 due  15 attempts  16 blocked
-- ARGV  1 instance  2 fence  then per id: flight, id, policy, retry count, error, its line (as in nack.lua)
--       policy: skip (the payload with the smallest score to the morgue, the rest is fresh and due
--       now), bury (all of the flight to the morgue), block (wait, accumulating, for a person)
-- Returns {the number of ids that were in their flight until now, of how many this call was}; see lib/measure.lua.
-- Errors: FENCED holder fence
-- Keeps I2. What was pushed meanwhile stays, as a fresh job; it was never tried. An id whose record in the
-- morgue is damaged waits for a person, whatever the policy.
--#include claimed
--#include take_out
--#include enqueue
--#include record
--#include sound
--#include spill
--#include measure
--#include recover
--#include morgue
--#include attempt
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function inter(id, some, retry, err)
  entomb(KEYS[11], KEYS[12], KEYS[13], KEYS[8], KEYS[9], id, some, retry, err, now)
end

-- renew stores what is left of a job as a fresh one, due now. The error stays with it until it succeeds.
local function renew(id, job, err)
  job.retry, job.at, job.err = -1, now, err
  redis.call('HSET', KEYS[2], id, reunite(id, job))
  redis.call('RPUSH', KEYS[3], id)
end

-- gone deletes a job of which nothing is left but what was pushed meanwhile.
local function gone(id)
  redis.call('HDEL', KEYS[2], id)
  local parked = redis.call('HGET', KEYS[5], id)
  if parked and readable(parked) then unpark(KEYS[2], KEYS[3], KEYS[14], KEYS[5], id, parked, now) end
end

-- oldest takes the payload with the smallest score out of a job, the first of equals. Those with keys
-- are in order.
local function oldest(job)
  local k = 1
  for i = 2, job.key and 1 or job.n do
    if lower(job.score[i], job.score[k]) then k = i end
  end
  local one = {n = 1, data = {table.remove(job.data, k)}}
  if job.key then one.key = {table.remove(job.key, k)} else one.score = {table.remove(job.score, k)} end
  one.bytes = #one.data[1]
  job.n, job.bytes = job.n - 1, job.bytes - one.bytes
  return one
end

local verdict = {}

function verdict.skip(id, job, retry, err)
  inter(id, oldest(job), retry, err)
  if job.n > 0 then renew(id, job, err) else gone(id) end
end

function verdict.bury(id, job, retry, err)
  inter(id, job, retry, err)
  gone(id)
end

function verdict.block(id, job, retry, err)
  job.retry, job.err, job.at = retry, err, now
  redis.call('HSET', KEYS[2], id, reunite(id, job))
  redis.call('ZADD', KEYS[16], string.format('%.0f', now), id)
end

local count, looked = 0, 0
for p = 3, #ARGV, 6 do
  local ids = take_out(KEYS[4], KEYS[6], ARGV[p], {ARGV[p + 1]})
  if ids[1] then
    count = count + 1
    local record = redis.call('HGET', KEYS[2], ids[1])
    if record then
      weigh_record(record)
      local retry, err = tonumber(ARGV[p + 3]), ARGV[p + 4]
      attempt(now, ids[1], retry, 'exhausted', ARGV[1], ARGV[p + 5])
      local policy = readable(redis.call('HGET', KEYS[11], ids[1])) and ARGV[p + 2] or 'block'
      verdict[policy](ids[1], parse(record), retry, err)
    end
  end
  looked = looked + 1
  weigh_id(redis.call('LLEN', KEYS[4]))
  if enough() then break end
end
if count > 0 then redis.call('HINCRBY', KEYS[13], 'failed', count) end
note_attempts(KEYS[15])
return {count, looked}
