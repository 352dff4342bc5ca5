-- line: list due ids behind a place. Reads only.
--
--#keys jobs suspects ready stale urgent
-- ARGV  1 maximum number of ids  2 '1': last first  3 maximum bytes of records to read  then the place: the
--       ids that were seen last, last first, each with its list and time; without a place the list begins at its end
-- Returns {number of ids behind the place; id, list and time with a comma between, …}
-- The list is 's' for suspects, 'u' and the score for urgent, '' for ready. The time is the due time (us) of the job,
-- or '' if the id has no job.
-- Entries leave the ready list at its head; repair.lua and take.lua are the rare exceptions. So if the entry of a place
-- is gone, it was popped with all entries before it. The due time of its job distinguishes it from a later entry of the
-- same id. Only an id that was popped, pushed and then deleted or made urgent passes for an entry that stayed.
-- If an id became due again where it stood, the place is the id that was seen before it.
-- A suspect or an urgent id may also have an obsolete entry in ready. That entry is never its place, because the
-- entries before it were not seen.
--#include record
--#include sound
--#include before
local most, reverse, room = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local suspects = redis.call('LLEN', KEY.suspects)
local others = redis.call('ZCOUNT', KEY.urgent, '-inf', '(0') -- urgent ids that are not due
local before = suspects + redis.call('ZCARD', KEY.urgent) - others -- entries before those of ready
local size = before + redis.call('LLEN', KEY.ready)
local stale = redis.call('EXISTS', KEY.stale) == 1

-- is_left reports whether workers pass over the entry of an id in ready.
local function is_left(id) return stale and redis.call('HEXISTS', KEY.stale, id) == 1 end

-- due returns the due time of an id as text, and its record.
local function due(id)
  local record = redis.call('HGET', KEY.jobs, id)
  if not record or record == 'x' then return '', record end
  room = room - #record
  local job = head_if(record)
  return job and string.format('%.0f', job.at) or '0', record -- a damaged job is listed without a time
end

-- find has a function for each list, which returns the index of an entry, or nil if it is gone.
local find = {}

find[''] = function(id, _, was)
  local at, record = due(id)
  local jobless = record == 'x' or not record and was == '' or is_left(id)
  if not jobless and (not record or at ~= was) then return nil end
  local found = redis.call('LPOS', KEY.ready, id)
  return found and before + found or nil
end

find.s = function(id) return redis.call('LPOS', KEY.suspects, id) or nil end

-- The place of an urgent id need not exist any more. The result is an index just before the entries behind it.
find.u = function(id, score)
  local first = suspects - others
  if reverse then return first + count_before(KEY.urgent, score, id, false) end
  return first + count_before(KEY.urgent, score, id, true) - 1
end

-- place returns the index of the newest entry of the place that is still there. If none is, it returns an index just
-- before the entries that may not have been seen.
local function place()
  local list = string.sub(ARGV[5], 1, 1)
  for p = 4, #ARGV, 3 do
    if string.sub(ARGV[p + 1], 1, 1) ~= list then break end
    local found = find[list](ARGV[p], string.sub(ARGV[p + 1], 2), ARGV[p + 2])
    if found then return found end
  end
  if list == 's' then return reverse and suspects or -1 end
  return reverse and before or before - 1
end

-- mark returns the list and the time of an entry.
local function mark(index, id)
  if index < suspects then return 's,' .. due(id) end
  if index < before then return string.format('u%.0f,', redis.call('ZSCORE', KEY.urgent, id) + 0) .. due(id) end
  return ',' .. (is_left(id) and '' or due(id))
end

-- stretch lists the ids from i to j of all lists, one list after the other.
local function stretch(i, j)
  local ids = {}
  if i < suspects then ids = redis.call('LRANGE', KEY.suspects, i, math.min(j, suspects - 1)) end
  if j >= suspects and i < before then
    local from = math.max(i, suspects) - suspects + others
    for _, id in ipairs(redis.call('ZRANGE', KEY.urgent, from, math.min(j, before - 1) - suspects + others)) do ids[#ids + 1] = id end
  end
  if j >= before then
    for _, id in ipairs(redis.call('LRANGE', KEY.ready, math.max(i - before, 0), j - before)) do ids[#ids + 1] = id end
  end
  return ids
end

local low, high = 0, size - 1
if #ARGV > 3 then
  if reverse then high = place() - 1 else low = place() + 1 end
end
local n = math.max(0, high - low + 1)
local answer = {n}
if n == 0 then return answer end
most = math.min(most, n)
if reverse then low = high - most + 1 end
local ids = stretch(low, low + most - 1)
for k = 1, #ids do
  local n = reverse and #ids - k + 1 or k
  local id = ids[n]
  answer[#answer + 1] = id
  answer[#answer + 1] = mark(low + n - 1, id)
  if room < 0 then break end
end
return answer
