-- bury: ids of flights ran out of retries, or their payloads of time.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due
--#keys journal journalx blocked reply progress
-- ARGV  1 instance  2 fence  3 bounds of the journal, see lib/journal.lua
--       then per id: flight, id, policy, retry count, error, its line (as in nack.lua)
--       policy: skip (the payload with the smallest score to the morgue, the rest is fresh and due
--       now), bury (all of the flight to the morgue), block (wait, accumulating, for a person), drop (all of the flight
--       is forgotten, and no failure); "bury cancelled": a person has ended the run, no failure; "bury expired", "drop expired":
--       no failure, and callers learn of the latter that they expired; followed by places of 4 digits, from 1: those payloads
--       alone, in the order of a handler, and the rest goes back to the head
-- Returns {the number of ids that were in their flight until now, of how many this call was}; see lib/measure.lua.
-- Errors: FENCED holder fence
-- Keeps I2. What was pushed meanwhile stays, as a fresh job; it was never tried. An id whose record
-- in the morgue is damaged waits for a person, whatever the policy.
--#include claimed
--#include take_out
--#include enqueue
--#include record
--#include sound
--#include spill
--#include measure
--#include recover
--#include morgue
--#include journal
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function inter(id, some, retry, err)
  entomb(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, id, some, retry, err, now)
end

-- renew stores what is left of a job as a fresh one, due now. The error stays with it until it
-- succeeds.
local function renew(id, job, err)
  job.retry, job.at, job.since, job.err = -1, now, nil, err
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  redis.call('RPUSH', KEY.ready, id)
end

-- gone deletes a job of which nothing is left but what was pushed meanwhile.
local function gone(id)
  redis.call('HDEL', KEY.jobs, id)
  local parked = redis.call('HGET', KEY.parked, id)
  if parked and readable(parked) then unpark(KEY.jobs, KEY.ready, KEY.due, KEY.parked, id, parked, now) end
end

-- oldest takes the payload with the smallest score out of a job, the first of equals. Those with
-- keys are in order.
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
  job.retry, job.err, job.at, job.since = retry, err, now, nil
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  redis.call('ZADD', KEY.blocked, string.format('%.0f', now), id)
end

function verdict.drop(id, job, retry, err, end_of_it)
  weigh(tell(job.data, end_of_it), 0)
  gone(id)
end

-- cut takes the payloads at some places, in the order of a handler, out of a job. It returns them as a piece.
local function cut(job, places)
  local order, taken = {}, {}
  for i = 1, job.n do order[i] = i end
  if not job.key then
    table.sort(order, function(i, j)
      local x, y = job.score[i] + 0, job.score[j] + 0
      if x ~= y then return x < y end
      return i < j
    end)
  end
  for at = 1, #places, 4 do
    local i = order[tonumber(string.sub(places, at, at + 3))]
    if i then taken[i] = true end
  end
  local some, rest = {n = 0, bytes = 0, data = {}}, {n = 0, bytes = 0, data = {}}
  local with = job.key and 'key' or 'score'
  some[with], rest[with] = {}, {}
  for i = 1, job.n do
    local to = taken[i] and some or rest
    to.n, to.bytes = to.n + 1, to.bytes + #job.data[i]
    to.data[to.n], to[with][to.n] = job.data[i], job[with][i]
  end
  job.n, job.bytes, job.data, job[with] = rest.n, rest.bytes, rest.data, rest[with]
  return some
end

-- expire ends a part of a job's payloads.
local function expire(policy, places, id, job, record, retry, err)
  local some = cut(job, places)
  if some.n > 0 then
    if policy == 'bury' then inter(id, some, retry, err) else weigh(tell(some.data, 'expired'), 0) end
  end
  if job.n == 0 then return gone(id) end
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  to_head(id, record)
end

local count, failed, looked = 0, 0, 0
open_journal()
local noted = redis.call('EXISTS', KEY.progress) == 1
for p = 4, #ARGV, 6 do
  local popped = claim['@' .. ARGV[p]]
  local ids = take_out(KEY.flight, KEY.crashes, ARGV[p], {ARGV[p + 1]})
  if ids[1] then
    count = count + 1
    local policy, places = ARGV[p + 2], ''
    local expired, cancelled = string.find(policy, ' expired', 1, true), policy == 'bury cancelled'
    if expired then
      places = string.sub(policy, expired + 8)
      policy = string.sub(policy, 1, expired - 1)
    end
    if cancelled then policy = 'bury' end
    if policy ~= 'drop' and not expired and not cancelled then failed = failed + 1 end
    if ARGV[p + 5] ~= '' then journal((noted and journal_log(ids[1], popped) or '') .. ARGV[p + 5], 1) end
    if noted then redis.call('HDEL', KEY.progress, ids[1]) end
    local record = redis.call('HGET', KEY.jobs, ids[1])
    if record then
      weigh_record(record)
      local retry, err = tonumber(ARGV[p + 3]), ARGV[p + 4]
      if policy ~= 'drop' and not readable(redis.call('HGET', KEY.morgue, ids[1])) then policy, places = 'block', '' end
      if places ~= '' then
        expire(policy, places, ids[1], parse(record), record, retry, err)
      else
        verdict[policy](ids[1], parse(record), retry, err, expired and 'expired' or 'deleted')
      end
    end
  end
  looked = looked + 1
  weigh_id(redis.call('LLEN', KEY.flight))
  if enough() then break end
end
if failed > 0 then redis.call('HINCRBY', KEY.count, 'failed', failed) end
close_journal(ARGV[1], now, ARGV[3])
return {count, looked}
