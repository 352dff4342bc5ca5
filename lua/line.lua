-- line: list due ids behind a place. Reads only.
--
--#keys jobs suspects ready stale urgent
-- ARGV  1 maximum number of ids  2 '1': last first  3 maximum bytes of records to read  then the place: the
--       ids that were seen last, last first, each with its list and time; without a place the list begins at its end
-- Returns {number of ids behind the place; id, list and time with a comma between, …}
-- The list is 's' for suspects, 'u' and the score for urgent, '' for ready. The time is the due time (us) of the job,
-- or '' if the id has no job.
-- Entries leave the ready list at its head; repair.lua is the rare exception. So if the entry of a place is
-- gone, it was popped with all entries before it. The due time distinguishes it from an entry of the same id
-- that came later. If an id became due again where it stood, the place is the id that was seen before it.
-- A suspect or an urgent id may also have an obsolete entry in ready. That entry is never its place, because the
-- entries before it were not seen.
--#include record
--#include sound
--#include rank
local most, reverse, room = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local suspects = redis.call('LLEN', KEY.suspects)
local others = redis.call('ZCOUNT', KEY.urgent, '-inf', '(0') -- urgent ids that are not due
local before = suspects + redis.call('ZCARD', KEY.urgent) - others -- entries before those of ready
local size = before + redis.call('LLEN', KEY.ready)
local stale = redis.call('EXISTS', KEY.stale) == 1

-- is_left reports whether workers pass over the entry of an id in ready.
local function is_left(id) return stale and redis.call('HEXISTS', KEY.stale, id) == 1 end

local function due(id)
  local record = redis.call('HGET', KEY.jobs, id)
  if not record or record == 'x' then return '', record end
  room = room - #record
  local job = head_if(record)
  return job and string.format('%.0f', job.at) or '0', record -- a damaged job is listed without a time
end

-- find has a function for each list, which returns the index of an entry. If the entry is gone, the index is just
-- before the entries that may not have been seen. The function also reports whether the search is over. Otherwise the
-- entry that was seen before it may be a better place.
local find = {}

-- An unchanged job that has no entry was popped, with all entries before it.
find[''] = function(id, was)
  local gone = reverse and before or before - 1
  local at, record = due(id)
  local there = record and record ~= 'x'
  if not is_left(id) and (there and at ~= was or not record and was ~= '') then return gone, false end
  local found = redis.call('LPOS', KEY.ready, id)
  return found and before + found or gone, found or there
end

find.s = function(id)
  local found = redis.call('LPOS', KEY.suspects, id)
  return found or (reverse and suspects or -1), found
end

find.u = function(id, _, score)
  local before = suspects - others
  if reverse then return before + rank(KEY.urgent, score, id, false), true end
  return before + rank(KEY.urgent, score, id, true) - 1, true
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
  local place
  for p = 4, #ARGV, 3 do
    local list = ARGV[p + 1]
    local found, over = find[string.sub(list, 1, 1)](ARGV[p], ARGV[p + 2], string.sub(list, 2))
    -- If an entry is gone, its index is too low in a list that is read forward, and a guess in reverse.
    if not place or reverse and over or not reverse and found > place then place = found end
    if over then break end
  end
  if reverse then high = place - 1 else low = place + 1 end
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
