-- line: list due ids behind a place. Reads only.
--
--#keys jobs suspects ready stale urgent
-- ARGV  1 maximum number of ids  2 '1': last first  3 maximum bytes of records to read  then the place: the
--       ids that were seen last, last first, each with its due time (us), or '' for an entry without a
--       job; without a place the list begins at its end
-- Returns {number of ids behind the place; id, due time (us) or '' if the id has no job, …}
-- Entries leave the ready list at its head; repair.lua is the rare exception. So if the entry of a place is
-- gone, it was popped with all entries before it. The due time distinguishes it from an entry of the same id
-- that came later. If an id became due again where it stood, or left the middle, the place is the id that
-- was seen before it. If it became urgent, the list continues behind it among the urgent ids, and repeats the ids between.
--#include record
--#include sound
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

-- place finds an entry. It also reports whether the search is over. The search is over if the entry is
-- found. It is also over if an unchanged job is in no list, because the job was popped.
local function place(id, was)
  local at, record = due(id)
  local there = record and record ~= 'x'
  if is_left(id) and (was == '' or at ~= was) then
    local found = redis.call('LPOS', KEY.ready, id)
    return found and before + found, found
  end
  if there and at ~= was or not record and was ~= '' then return nil end
  local found = redis.call('LPOS', KEY.suspects, id)
  if found then return found, true end
  found = redis.call('ZRANK', KEY.urgent, id)
  if found and found >= others then return suspects + found - others, true end
  if is_left(id) then return nil, there end
  found = redis.call('LPOS', KEY.ready, id)
  return found and before + found, found or there
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
  local found, over
  for p = 4, #ARGV, 2 do
    found, over = place(ARGV[p], ARGV[p + 1])
    if over then break end
  end
  if reverse then high = (found or 0) - 1 elseif found then low = found + 1 end
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
  answer[#answer + 1] = low + n - 1 >= before and is_left(id) and '' or (due(id))
  if room < 0 then break end
end
return answer
