-- Included after lib/spill.lua and lib/measure.lua: the morgue, whose payloads wait for a person.
--#include tell

-- scored gives payloads from the spill their scores as text.
local function scored(some)
  if not some.key then return some end
  local score = {}
  for i = 1, some.n do score[i] = f17(ranked(some.key[i])) end
  return {n = some.n, bytes = some.bytes, data = some.data, score = score}
end

-- oldest takes the payload with the smallest score out of a job; of equal scores, the first. Payloads
-- with keys are in order already.
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

-- bury_payloads adds the payloads of a job, at most a piece, to the morgue record of the id. The record gets the
-- retry count, the error (an empty error replaces none), and the time (us) as its due time. Equal
-- payloads become one payload. Among equal scores the added payloads are last, because the others were
-- buried before. With silent it tells nobody, because the payloads were buried elsewhere.
local function bury_payloads(morgue_key, dead_key, count_key, spill, spillx, id, some, retry, err, now, silent)
  local rec = redis.call('HGET', morgue_key, id)
  local job = rec and parse(rec) or {n = 0, bytes = 0, next = 1, shift = 0, data = {}, score = {}}
  local had = job.n
  job.retry, job.at = retry, now
  job.err = err ~= '' and err or job.err or ''
  local crowded = rec and string.byte(rec, 1) == 115
  if not crowded and spill_small(some.n, some.bytes) then
    rec = spill_pack(spill, spillx, 'm', id, merge(job, scored(some)))
  else
    if not crowded then spill_open(spill, spillx, 'm', id, job, 1) end
    spill_behind(spill, spillx, 'm', id, job, some)
    rec = head('s', job)
  end
  redis.call('HSET', morgue_key, id, rec)
  if not silent then weigh(tell(some.data, 'buried\n' .. err, id), 0) end
  redis.call('ZADD', dead_key, string.format('%.0f', now), id)
  if job.n > had then redis.call('HINCRBY', count_key, 'morgue', job.n - had) end
end
