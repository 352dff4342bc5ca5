-- permit: how many handler calls of a queue an instance may have at once, of those that the cluster may.
--
--#keys permits lease
-- ARGV  1 instance  2 number of the request, one more each time  3 the limit  4 how many it has: before the answer it has
--       no more calls than that  5 how many it wants in all  6 how many it would keep if nobody lacks them
--       7 how long a turn is (us), see below
-- Returns {how many it may have from now on, 1 if it has none and is the next one to get one, else 0, 1 if others want more than
--         they hold, else 0}. If it may have fewer than it has, it begins no call until fewer run, and asks again: until then it
--         holds what it has.
-- Errors: LEASE  the instance has none
--
-- Field <instance> of permits is "<number> <held> <wanted> <since>": since (us) it holds some, or wants some and has none.
-- All that is held is never more than the limit, unless that was lowered: an instance holds what it was granted, and at
-- least what it says that it has. It says fewer only when it has fewer, whatever answers were lost. An instance whose lease is
-- gone holds nothing: its calls have ended by then (I1). A request that comes twice, or late, changes nothing.
--
-- Nobody gets more than its share while others have less than theirs and want it. Where there are fewer permits than
-- instances that want one, they take turns: who has had one for a turn gives it up, and who waits longest is next.
--
-- KEY.lease is what the names of leases begin with; no such key exists.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local number, limit, has, wanted = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
redis.call('HDEL', KEY.permits, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua

-- read has an entry; its time is not to come, though Redis's clock may have been set back.
local function read(text)
  local n, held, wants, since = string.match(text, '^(%d+) (%d+) (%d+) (%d+)')
  return {number = tonumber(n or 0), held = tonumber(held or 0), wanted = tonumber(wants or 0), since = math.min(tonumber(since or now), now)}
end

local function lives(instance) return redis.call('EXISTS', KEY.lease .. ':' .. instance) == 1 end

local mine, others, held, askers = read(''), {}, 0, wanted > 0 and 1 or 0
local all = redis.call('HGETALL', KEY.permits)
for i = 1, #all, 2 do
  local one = read(all[i + 1])
  if all[i] == ARGV[1] then
    mine = one
  elseif lives(all[i]) then
    others[#others + 1] = one
    held = held + one.held
    if one.wanted > 0 then askers = askers + 1 end
  else
    redis.call('HDEL', KEY.permits, all[i])
  end
end
if number <= mine.number then return {mine.held, 0, 0} end
if not lives(ARGV[1]) then return redis.error_reply('LEASE') end

local share, free = math.max(1, math.floor(limit / math.max(1, askers))), math.max(0, limit - held)
local hungry, lacking, before = false, false, 0
for i = 1, #others do
  local one = others[i]
  if one.held < math.min(one.wanted, share) then hungry = true end
  if one.held < one.wanted then lacking = true end
  if one.held == 0 and one.wanted > 0 and one.since < mine.since then before = before + 1 end
end
local may = math.min(lacking and wanted or math.max(wanted, tonumber(ARGV[6])), free)
if hungry then
  may = math.min(wanted, share, free)
  if askers > limit then
    if mine.held == 0 then
      may = math.min(may, math.max(0, free - before))
    elseif now - mine.since >= tonumber(ARGV[7]) then
      may = 0
    end
  end
end
local holds = math.max(has, may)
local since = mine.since
if (holds > 0) ~= (mine.held > 0) or holds == 0 and mine.wanted == 0 then since = now end
redis.call('HSET', KEY.permits, ARGV[1], string.format('%.0f %d %d %.0f', number, holds, wanted, since))
redis.call('PEXPIRE', KEY.permits, 600000)
return {may, holds == 0 and wanted > 0 and before == 0 and 1 or 0, lacking and 1 or 0}
