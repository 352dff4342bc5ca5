-- Included after spill.lua: the morgue, payloads that wait for a person.

-- spill_more adds payloads, no two of them equal, to a crowded job of which only the head was read.
-- One by one (spill_add) each would copy the head again.
local function spill_more(spill, spillx, space, id, job, data, score)
  local prefix = spill_prefix(space, id)
  local names, there, members, fields = {}, {}, {}, {}
  for i = 1, #data do names[i] = prefix .. data[i] end
  in_chunks(names, 1, function(...)
    for _, v in ipairs(redis.call('HMGET', spillx, ...)) do there[#there + 1] = v end
  end)
  for i = 1, #data do
    local place = there[i] and string.sub(there[i], 1, 12)
    if not place then
      place = string.format('%012d', job.next)
      members[#members + 1], members[#members + 2] = 0, prefix .. place .. data[i]
      job.n, job.bytes, job.next = job.n + 1, job.bytes + #data[i], job.next + 1
    end
    if not there[i] or lower(score[i], string.sub(there[i], 14)) then
      fields[#fields + 1], fields[#fields + 2] = names[i], place .. ' ' .. score[i]
    end
  end
  in_chunks(members, 2, function(...) redis.call('ZADD', spill, ...) end)
  in_chunks(fields, 2, function(...) redis.call('HSET', spillx, ...) end)
end

-- entomb adds payloads of a job to the id's morgue record, which then carries this retry
-- count, this error and the time (us) as its due time. Equal payloads are one.
local function entomb(morgue_key, dead_key, count_key, spill, spillx, id, data, score, retry, err, now)
  local rec = redis.call('HGET', morgue_key, id)
  local job = rec and parse(rec) or {n = 0, bytes = 0, data = {}, score = {}}
  local had = job.n
  job.retry, job.err, job.at = retry, err, now
  if rec and string.byte(rec, 1) == 115 then
    spill_more(spill, spillx, 'm', id, job, data, score)
    rec = head('s', job)
  else
    rec = spill_pack(spill, spillx, 'm', id, merge(job, {n = #data, data = data, score = score}))
  end
  redis.call('HSET', morgue_key, id, rec)
  redis.call('ZADD', dead_key, string.format('%.0f', now), id)
  if job.n > had then redis.call('HINCRBY', count_key, 'morgue', job.n - had) end
end
