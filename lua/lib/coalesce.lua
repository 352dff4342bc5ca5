-- Included by coalesce.lua and push_urgent.lua, which have its arguments: stores payloads as lib/store.lua does, by the
-- rules of the queue that let a push replace or delay waiting payloads. Expects `now`.
local mode, width, n = 'm', 4, (#ARGV - 4) / 4
--#include last_score
local ids, old, read = {}, {}, 0
for i = 1, n do ids[i] = ARGV[1 + i * 4] end

--#include held
--#include record
--#include spill
local kind, quiet, longest = string.match(ARGV[1], '^m (%S+) (%d+) (%d+)')
quiet, longest = tonumber(quiet), tonumber(longest)

-- called reports whether a caller waits for the end of a payload.
local function called(payload)
  local a, b, hi, lo = string.byte(payload, 1, 4)
  if a ~= 0 or b ~= 76 or not lo then return false end
  local m = string.byte(payload, 5 + hi * 256 + lo)
  return m ~= nil and m > 0
end

-- spilled returns the payloads of a crowded id as a parsed job. They stay in the spill.
local function spilled(id, job)
  local prefix = spill_prefix('w', id)
  local members = spill_lowest(KEY.spill, prefix, job.bytes, job.n, math.huge)
  job.n = #members
  for i = 1, #members do
    job.score[i] = f17(ranked(string.sub(members[i], #prefix + 1, #prefix + 8)))
    job.data[i] = string.sub(members[i], #prefix + 21)
  end
end

-- The job at hand; and for each id of this push the places of its payloads that are no calls: the last
-- place of each payload, and the last place of all.
local job_at, places, final = 0, nil, {}
local function behind(id, payload)
  if not places then
    places = {}
    for i = 1, n do
      local data = ARGV[2 + i * 4]
      if not called(data) then
        places[ids[i] .. '\0' .. bare(data)], final[ids[i]] = i, i
      end
    end
  end
  local i = payload and places[id .. '\0' .. bare(payload)] or not payload and final[id]
  return i and i > job_at and i
end

-- follows reports whether job i of this push comes after the job at hand, which has this score, in the order
-- of handling.
local function follows(i, score)
  local of = ARGV[3 + i * 4]
  return not lower(of == '' and base / 1000000 or of, score)
end

-- latest replaces the waiting payloads that are no calls. It returns the results of spill_add, and the cost
-- of its reads and writes besides the record.
local function latest(id, job, crowded, payload, score, most, most_bytes, flying)
  if crowded then spilled(id, job) end
  local newest
  local calls, bytes = 0, 0
  for i = 1, job.n do
    if called(job.data[i]) then
      calls, bytes = calls + 1, bytes + #job.data[i]
    elseif not newest or not lower(job.score[i], job.score[newest]) then
      newest = i
    end
  end
  local code, cost, stays = '0', crowded and math.floor(job.bytes / 512) or 0, false
  if newest then
    local was = job.data[newest]
    if bare(was) == bare(payload) then
      code, stays = '1', ARGV[3 + job_at * 4] == '' or not lower(job.score[newest], score)
    else
      local i = not lower(score, job.score[newest]) and behind(id, was)
      stays = lower(score, job.score[newest]) or i and follows(i, score)
    end
  end
  if stays then
    if calls + 1 == job.n then return '1', nil, cost end
    code, bytes = '1', bytes + #job.data[newest]
  else
    if code == '0' and calls >= most then return '2', nil, cost end
    bytes = bytes + #payload
    if bytes > most_bytes then return '3', nil, cost end
  end
  local kept = {retry = job.retry, at = job.at, since = job.since, group = job.group, err = job.err, n = 0, bytes = bytes, next = calls + 2, shift = 0, data = {}, score = {}}
  local function keep(data, of)
    kept.n = kept.n + 1
    kept.data[kept.n], kept.score[kept.n] = data, of
  end
  for i = 1, job.n do
    if stays and i == newest or called(job.data[i]) then keep(job.data[i], job.score[i]) end
  end
  if not stays then keep(payload, score) end
  if crowded then spill_take(KEY.spill, KEY.spillx, 'w', id, job, job.n, math.huge) end
  return code, spill_pack(KEY.spill, KEY.spillx, 'w', id, kept, spill_from(flying)), 2 * cost
end

local add = spill_add
spill_add = function(spill, spillx, space, id, rec, payload, score, at, most, most_bytes, flying)
  if kind ~= 'all' and rec and not called(payload) then
    local job, crowded = parse(rec), string.byte(rec, 1) == 115
    if kind == 'once' then return '1' end
    if not crowded or job.n <= spill_count and (job.n == 1 or job.bytes <= piece_bytes) then
      return latest(id, job, crowded, payload, score, most, most_bytes, flying)
    end
    local i = behind(id)
    if i and follows(i, score) and redis.call('HEXISTS', spillx, spill_prefix(space, id) .. bare(ARGV[2 + i * 4])) == 1 then return '1' end
  end
  return add(spill, spillx, space, id, rec, payload, score, at, most, most_bytes, flying)
end

-- defer returns the time (us) until which push i delays its id, or nil.
local function defer(i, id, record, busy)
  job_at = i
  if quiet == 0 then return nil end
  if ARGV[4 + i * 4] ~= '' then
    if not record then redis.call('ZREM', KEY.since, id) end -- it belongs to an earlier job
    return nil
  end
  if not record then return now + quiet end
  local first = redis.call('ZSCORE', KEY.since, id)
  if not first then return nil end
  if not busy then
    local due = redis.call('ZSCORE', KEY.due, id)
    if not due or is_held(due) then return nil end
  end
  return math.max(now, math.min(now + quiet, first + longest))
end

-- deferred delays the id, and returns its new record. It makes no id due earlier: since may belong to an
-- earlier job, if a process without the rule has pushed this job with a time of its own.
local function deferred(id, at, changed, record, busy)
  if not record then
    redis.call('ZADD', KEY.since, string.format('%.0f', now), id)
    return changed
  end
  changed = changed or record
  if string.byte(changed, 1) == 115 then
    local head, due, stop = string.match(changed, '^(.%S+ )(%d+)()')
    at = math.max(at, tonumber(due))
    changed = head .. string.format('%.0f', at) .. string.sub(changed, stop)
  else
    local job = parse(changed)
    at = math.max(at, job.at)
    job.at = at
    changed = pack(job)
  end
  if not busy then redis.call('ZADD', KEY.due, string.format('%.0f', at), id) end
  return changed
end

local strict = false
--#include store

local over = quiet > 0 and redis.call('ZRANGEBYSCORE', KEY.since, '-inf', string.format('%.0f', now - longest - 60000000), 'LIMIT', 0, 16 + 2 * n) or {}
if #over > 0 then redis.call('ZREM', KEY.since, unpack(over)) end
