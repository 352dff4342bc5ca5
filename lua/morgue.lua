-- Included after spill.lua: the morgue, payloads that wait for a person.

-- entomb adds payloads of a job to the id's morgue record, which then carries this retry
-- count, this error and the time (us) as its due time. Equal payloads are one.
local function entomb(morgue_key, dead_key, count_key, spill, spillx, id, data, score, retry, err, now)
  local rec = redis.call('HGET', morgue_key, id)
  local added = 0
  for i = 1, #data do
    local code, changed = spill_add(spill, spillx, 'm', id, rec, data[i], score[i], now, math.huge, math.huge)
    if code == '0' then added = added + 1 end
    rec = changed or rec
  end
  local job = parse(rec)
  job.retry, job.err, job.at = retry, err, now
  redis.call('HSET', morgue_key, id, string.byte(rec, 1) == 115 and head('s', job) or pack(job))
  redis.call('ZADD', dead_key, string.format('%.0f', now), id)
  if added > 0 then redis.call('HINCRBY', count_key, 'morgue', added) end
end
