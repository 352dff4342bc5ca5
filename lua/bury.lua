-- bury: end jobs of flights that have no retries left, are cancelled, or have expired payloads.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due
--#keys journal journalx blocked reply progress urgent stale out
-- ARGV  1 instance  2 fence  3 bounds of the journal, see lib/journal.lua
--       then per id: flight, id, policy, retry count, error, line of the journal (as in nack.lua)
--       policy: a word, a cause and places, as in "bury some 00010003"
--               skip   the payload with the smallest score goes to the morgue; the rest is a new job, due now
--               bury   all payloads of the flight go to the morgue
--               block  the job waits for a person, and collects payloads
--               drop   all payloads of the flight are deleted; this is no failure
--       cause:  failed     the job has no retries left
--               some       the handler never wants to see the payloads at these places again
--               cancelled  a person has cancelled the run; this is no failure
--               expired    payloads have expired; this is no failure, and callers of dropped payloads learn it
--       places: 4 digits each, from 1 in the order of handling. The policy applies to these payloads, and the
--               rest goes back to the head, as it was. No places stand for all payloads. No handler has seen
--               a job with expired payloads, so an id in quarantine stays there if payloads are left.
-- Returns {ids that were in their flight until now, ids that this call has looked at}; see lib/measure.lua.
-- Errors: FENCED holder fence
-- Keeps I2. Payloads that were pushed meanwhile stay as a new job, because they were never tried. An id
-- whose record in the morgue is damaged is blocked, whatever the policy.
--#include claimed
--#include take_out
--#include urgent
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
--#include gone

local function bury_some(id, some, retry, err)
  bury_payloads(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, id, some, retry, err, now)
end

-- renew stores the rest of a job as a new job that is due now. The error stays until the job succeeds.
local function renew(id, job, err)
  job.retry, job.at, job.since, job.err = -1, now, nil, err
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  enqueue(KEY.ready, KEY.due, id, now, now)
end

local verdict = {}

function verdict.skip(id, job, retry, err)
  bury_some(id, oldest(job), retry, err)
  if job.n > 0 then renew(id, job, err) else gone(id) end
end

function verdict.bury(id, job, retry, err)
  bury_some(id, job, retry, err)
  gone(id)
end

function verdict.block(id, job, retry, err)
  job.retry, job.err, job.at, job.since = retry, err, now, nil
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  redis.call('ZADD', KEY.blocked, string.format('%.0f', now), id)
end

function verdict.drop(id, job, retry, err, end_of_it)
  weigh(tell(job.data, end_of_it, id), 0)
  gone(id)
end

-- cut takes the payloads at given places, in the order of handling, out of a job. It returns them as a
-- piece.
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

-- end_some ends the payloads of a job at given places. Payloads that are dropped have expired.
local function end_some(policy, places, id, job, record, retry, err)
  local some = cut(job, places)
  if some.n > 0 then
    if policy == 'bury' then bury_some(id, some, retry, err) else weigh(tell(some.data, 'expired', id), 0) end
  end
  if job.n == 0 then
    redis.call('HDEL', KEY.crashes, id)
    return gone(id)
  end
  redis.call('HSET', KEY.jobs, id, reunite(id, job))
  to_head(id, record)
end

local count, failed, looked = 0, 0, 0
open_journal()
local noted = redis.call('EXISTS', KEY.progress) == 1
for p = 4, #ARGV, 6 do
  local popped = claim['@' .. ARGV[p]]
  local policy, cause, from = string.match(ARGV[p + 2], '^(%S+) (%S+) ()')
  local places = string.sub(ARGV[p + 2], from)
  local answered = cause ~= 'expired' or places == ''
  local ids = take_out(KEY.flight, answered and KEY.crashes or nil, ARGV[p], {ARGV[p + 1]})
  if ids[1] then
    count = count + 1
    if policy ~= 'drop' and (cause == 'failed' or cause == 'some') then failed = failed + 1 end
    if ARGV[p + 5] ~= '' then journal((noted and journal_log(ids[1], popped) or '') .. ARGV[p + 5], 1) end
    if noted then redis.call('HDEL', KEY.progress, ids[1]) end
    local record = redis.call('HGET', KEY.jobs, ids[1])
    if record then
      weigh_record(record)
      local retry, err = tonumber(ARGV[p + 3]), ARGV[p + 4]
      if policy ~= 'drop' and not readable(redis.call('HGET', KEY.morgue, ids[1])) then
        policy, places = 'block', ''
        redis.call('HDEL', KEY.crashes, ids[1]) -- a blocked id is in no quarantine
      end
      if places ~= '' then
        end_some(policy, places, ids[1], parse(record), record, retry, err)
      else
        verdict[policy](ids[1], parse(record), retry, err, cause == 'expired' and 'expired' or 'deleted')
      end
    else
      redis.call('HDEL', KEY.crashes, ids[1])
    end
  end
  looked = looked + 1
  weigh_id(redis.call('LLEN', KEY.flight))
  if enough() then break end
end
if failed > 0 then redis.call('HINCRBY', KEY.count, 'failed', failed) end
close_journal(ARGV[1], now, ARGV[3])
return {count, looked}
