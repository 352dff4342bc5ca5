-- permit: how many handler calls of a queue an instance may have at once, of those that the cluster may.
--
--#keys permits permitsx lease
-- ARGV  1 instance  2 number of the request, one more each time  3 the limit  4 how many it has: before the answer it has
--       no more calls than that  5 how many it wants in all  6 how many it would keep if nobody lacks them
--       7 how long a turn is (us), see below
-- Returns {how many it may have from now on, how many instances that have none are to get one before it, 1 if others want more than
--         they hold, else 0, how many instances want some}. If it may have fewer than it has, it begins no call until fewer run,
--         and asks again: until then it holds what it has.
-- Errors: LEASE  the instance has none
--
-- Field <instance> of permits is "<number> <held> <wanted> <since>": since (us) it holds some, or wants some and has none. Field "" is
-- "<held> <askers>": the sum of what all hold, and how many want some.
-- permitsx are those that want more than they hold: what they hold; before them, in the order of their time, those that hold none.
-- So a request costs the same however many instances there are.
--
-- All that is held is never more than the limit, unless that was lowered: an instance holds what it was granted, and at
-- least what it says that it has. It says fewer only when it has fewer, whatever answers were lost. An instance whose lease is
-- gone holds nothing: its calls have ended by then (I1). Each request looks at a few, at random, and at those that are next.
-- A request that comes twice, or late, changes nothing.
--
-- Nobody gets more than its share while others have less than theirs and want it. Where there are fewer permits than
-- instances that want one, they take turns: who has had one for a turn gives it up, and who waits longest is next.
--
-- KEY.lease is what the names of leases begin with; no such key exists.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local instance, number, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local has, wanted, keeps, turn = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local LOOK = 6
local WAITS = -4503599627370496 -- added to since, it is less than 0 and exact
redis.call('HDEL', KEY.permits, '-') -- a first write that cannot grow, for a Redis out of memory: see lease.lua

-- read has an entry; its time is not to come, though Redis's clock may have been set back.
local function read(text)
  local n, held, wants, since = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)')
  return {number = tonumber(n or 0), held = tonumber(held or 0), wanted = tonumber(wants or 0), since = math.min(tonumber(since or now), now)}
end

local function lives(name) return redis.call('EXISTS', KEY.lease .. ':' .. name) == 1 end

local sums = redis.call('HGET', KEY.permits, '') or '0 0'
local held, askers = string.match(sums, '^(%d+) (%d+)')
held, askers = tonumber(held), tonumber(askers)

-- leave takes an entry out of the sums.
local function leave(entry)
  held = held - entry.held
  if entry.wanted > 0 then askers = askers - 1 end
end

local mine = read(redis.call('HGET', KEY.permits, instance))
if number <= mine.number then return {mine.held, 0, 0, askers} end
if not lives(instance) then return redis.error_reply('LEASE') end
leave(mine)
redis.call('ZREM', KEY.permitsx, instance)

local function look(name)
  if name == '' or name == instance or lives(name) then return end
  leave(read(redis.call('HGET', KEY.permits, name)))
  redis.call('HDEL', KEY.permits, name)
  redis.call('ZREM', KEY.permitsx, name)
end
local some = redis.call('HRANDFIELD', KEY.permits, LOOK)
for i = 1, #some do look(some[i]) end
local line = redis.call('ZRANGE', KEY.permitsx, 0, LOOK - 1)
for i = 1, #line do look(line[i]) end

if wanted > 0 then askers = askers + 1 end
if mine.held == 0 and mine.wanted == 0 then mine.since = now end
local share, free = math.max(1, math.floor(limit / math.max(1, askers))), math.max(0, limit - held)
local least = redis.call('ZRANGE', KEY.permitsx, 0, 0, 'WITHSCORES')
local lacking = #least > 0
local hungry = lacking and tonumber(least[2]) < share
local before = 0
if mine.held == 0 then before = redis.call('ZCOUNT', KEY.permitsx, '-inf', string.format('(%.0f', mine.since + WAITS)) end
local may = math.min(lacking and wanted or math.max(wanted, keeps), free)
if hungry then
  may = math.min(wanted, share, free)
  if askers > limit then
    if mine.held == 0 then
      may = math.min(may, math.max(0, free - before))
    elseif now - mine.since >= turn then
      may = 0
    end
  end
end
local holds = math.max(has, may)
local since = mine.since
if (holds > 0) ~= (mine.held > 0) then since = now end
held = held + holds
redis.call('HSET', KEY.permits, instance, string.format('%.0f %d %d %.0f', number, holds, wanted, since), '', held .. ' ' .. askers)
if holds < wanted then
  redis.call('ZADD', KEY.permitsx, string.format('%.0f', holds == 0 and since + WAITS or holds), instance)
end
redis.call('PEXPIRE', KEY.permits, 600000)
redis.call('PEXPIRE', KEY.permitsx, 600000)
return {may, holds == 0 and wanted > 0 and before or 0, lacking and 1 or 0, askers}
