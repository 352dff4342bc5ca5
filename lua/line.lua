-- line: a stretch of the line of ids that are due, beyond a place. Reads only.
--
--#keys jobs suspects ready stale
-- ARGV  1 most ids  2 '1': last first  3 most bytes of records to look at  then the place: the ids that were
--       seen last, last first (none = begin at the end), each with its due time us or '' for an entry without a job
-- Returns {ids beyond the place; id, due time us or '' if nothing waits for it, …}
-- An entry leaves the list at its head, with hardly an exception (repair.lua). So a place that is
-- gone was popped, and with it all that stood before it. The due time tells a place from the same
-- id that came again at the end. But an id may also be made due again where it stands, or leave the
-- middle: then the place is the one seen before it.
--#include record
--#include sound
local most, reverse, room = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local suspects = redis.call('LLEN', KEY.suspects)
local size = suspects + redis.call('LLEN', KEY.ready)
local stale = redis.call('EXISTS', KEY.stale) == 1

local function due(id)
  local record = redis.call('HGET', KEY.jobs, id)
  if stale and redis.call('HEXISTS', KEY.stale, id) == 1 then record = 'x' end -- the entry is a deleted job's
  if not record or record == 'x' then return '', record end
  room = room - #record
  local job = head_if(record)
  return job and string.format('%.0f', job.at) or '0', record -- a damaged one: listed, of no known time
end

-- place finds an entry. It says also that the search is over: a job that has not changed and is in
-- no list was popped.
local function place(id, was)
  local at, record = due(id)
  if record and at ~= was and record ~= 'x' or not record and was ~= '' then return nil end
  local found = redis.call('LPOS', KEY.suspects, id)
  if found then return found, true end
  found = redis.call('LPOS', KEY.ready, id)
  return found and suspects + found, found or record and record ~= 'x'
end

-- stretch lists the ids from i to j of both lists, one behind the other.
local function stretch(i, j)
  local ids = {}
  if i < suspects then ids = redis.call('LRANGE', KEY.suspects, i, math.min(j, suspects - 1)) end
  if j >= suspects then
    for _, id in ipairs(redis.call('LRANGE', KEY.ready, math.max(i - suspects, 0), j - suspects)) do ids[#ids + 1] = id end
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
local ids
if reverse then ids = stretch(high - most + 1, high) else ids = stretch(low, low + most - 1) end
for k = 1, #ids do
  local id = ids[reverse and #ids - k + 1 or k]
  answer[#answer + 1] = id
  answer[#answer + 1] = (due(id))
  if room < 0 then break end
end
return answer
