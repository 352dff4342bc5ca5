-- Included by other scripts: ids with many payloads.
--
-- A record of many payloads would be copied whole by every push. Past 32 payloads or
-- 4 KiB they move to two structures that all ids of the shard share, so that a push
-- costs the same however many payloads wait:
--   spill   ZSET, all scores 0: "w<len id>:<id>:" .. 12 digits place .. payload, in push order
--   spillx  HASH "w<len id>:<id>:" .. payload -> "place score": is it waiting, and with which score
-- "w" is the set of waiting (or parked) payloads, "m" that of the morgue.
local spill_count, spill_bytes = 32, 4096
local spill_chunk = 2000

local function spill_prefix(space, id) return space .. #id .. ':' .. id .. ':' end

local function in_chunks(list, width, call)
  for i = 1, #list, spill_chunk * width do
    call(unpack(list, i, math.min(#list, i + spill_chunk * width - 1)))
  end
end

-- spill_load reads all payloads of a record, in order (I3). The record must not be a tombstone.
local function spill_load(spill, spillx, space, id, rec)
  local job = parse(rec)
  if string.sub(rec, 1, 1) ~= 's' then return job end
  local prefix = spill_prefix(space, id)
  local members = redis.call('ZRANGEBYLEX', spill, '[' .. prefix, '(' .. prefix .. ':')
  local fields = {}
  for i = 1, #members do
    job.data[i] = string.sub(members[i], #prefix + 13)
    fields[i] = prefix .. job.data[i]
  end
  local k = 0
  in_chunks(fields, 1, function(...)
    for _, v in ipairs(redis.call('HMGET', spillx, ...)) do
      k = k + 1
      job.score[k] = string.sub(v, 14)
    end
  end)
  job.n = #members
  return job
end

-- spill_drop forgets the payloads of a crowded record.
local function spill_drop(spill, spillx, space, id, rec)
  if not rec or string.sub(rec, 1, 1) ~= 's' then return end
  local prefix = spill_prefix(space, id)
  local fields = {}
  for i, member in ipairs(redis.call('ZRANGEBYLEX', spill, '[' .. prefix, '(' .. prefix .. ':')) do
    fields[i] = prefix .. string.sub(member, #prefix + 13)
  end
  in_chunks(fields, 1, function(...) redis.call('HDEL', spillx, ...) end)
  redis.call('ZREMRANGEBYLEX', spill, '[' .. prefix, '(' .. prefix .. ':')
end

-- spill_pack makes the record of a job, moving its payloads to the spill if they are
-- many. The space must hold nothing of this id.
local function spill_pack(spill, spillx, space, id, job)
  if job.n <= spill_count and job.bytes <= spill_bytes then return pack(job) end
  local prefix = spill_prefix(space, id)
  local members, fields = {}, {}
  for i = 1, job.n do
    local place = string.format('%012d', i)
    members[2 * i - 1], members[2 * i] = 0, prefix .. place .. job.data[i]
    fields[2 * i - 1], fields[2 * i] = prefix .. job.data[i], place .. ' ' .. job.score[i]
  end
  job.next = job.n + 1
  in_chunks(members, 2, function(...) redis.call('ZADD', spill, ...) end)
  in_chunks(fields, 2, function(...) redis.call('HSET', spillx, ...) end)
  return head('s', job)
end

-- spill_add adds one payload to a record (false: none yet). It returns the answer's
-- character (see push.lua) and the new record, or nil if the record did not change.
local function spill_add(spill, spillx, space, id, rec, payload, score, at, most, most_bytes)
  if not rec then
    if most < 1 then return '2' end
    if #payload > most_bytes then return '3' end
    return '0', spill_pack(spill, spillx, space, id, single(at, score, payload))
  end
  local job = parse(rec)
  if string.sub(rec, 1, 1) ~= 's' then
    for i = 1, job.n do
      if job.data[i] == payload then
        if not lower(score, job.score[i]) then return '1' end
        job.score[i] = score
        return '1', pack(job)
      end
    end
    if job.n >= most then return '2' end
    if job.bytes + #payload > most_bytes then return '3' end
    job.n = job.n + 1
    job.data[job.n], job.score[job.n] = payload, score
    job.bytes, job.next = job.bytes + #payload, job.n + 1
    return '0', spill_pack(spill, spillx, space, id, job)
  end
  local prefix = spill_prefix(space, id)
  local there = redis.call('HGET', spillx, prefix .. payload)
  if there then
    if lower(score, string.sub(there, 14)) then
      redis.call('HSET', spillx, prefix .. payload, string.sub(there, 1, 13) .. score)
    end
    return '1'
  end
  if job.n >= most then return '2' end
  if job.bytes + #payload > most_bytes then return '3' end
  local place = string.format('%012d', job.next)
  redis.call('ZADD', spill, 0, prefix .. place .. payload)
  redis.call('HSET', spillx, prefix .. payload, place .. ' ' .. score)
  job.n, job.bytes, job.next = job.n + 1, job.bytes + #payload, job.next + 1
  return '0', head('s', job)
end
