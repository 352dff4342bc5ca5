-- permit: how many handler calls of a queue may an instance have at once?
--
--#keys permits permitsx lease
-- ARGV  1 instance  2 number of the request, which grows by 1 with each request  3 limit of the cluster
--       4 the larger number of the instance's permits and calls; before the answer it has at most as many calls
--       5 calls that it wants in all  6 calls for which it keeps permits if no instance lacks permits
--       7 length of a turn (us), see below
-- Returns {calls that it may have from now on, instances that get a permit before it (if it has none), 1 if others want
--         more permits than they hold, else 0, instances that want permits}. An instance that may have fewer calls
--         than it has begins no call until fewer run, and asks again. Until then it holds permits for all of them.
-- Errors: LEASE: the instance has no lease
--
-- Field <instance> of permits is "<number> <held> <wanted> <since>". since (us) is when the instance began to hold
-- permits, or, without permits, to want them. Field "" is "<held> <askers>": the sum of all held permits, and the
-- number of instances that want permits.
-- permitsx has the instances that want more permits than they hold. Instances without permits come first, in the order
-- of since. The others follow in the order of their held permits. So a request costs the same however many instances
-- there are.
--
-- The sum of held permits exceeds the limit only after the limit was lowered. An instance holds what it was granted,
-- and at least what it reports. It reports fewer only when it has fewer calls, so lost answers free no permit that is
-- in use. An instance without a lease holds nothing, because its calls have ended by then (I1). Each request checks the
-- leases of a few random instances and of the next instances in permitsx. A repeated or late request changes nothing.
--
-- While an instance has less than its share and wants more, no other instance gets more than its share. If there are
-- fewer permits than instances that want permits, the instances take turns. An instance gives its permit up after a
-- turn, and the instance that has waited longest gets it.
--
-- KEY.lease is the beginning of the names of leases. No key has this name.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local instance, number, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local has, wanted, keeps, turn = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local LOOK = 6
local WAITS = -4503599627370496 -- since + WAITS is below 0, and exact in a double
redis.call('HDEL', KEY.permits, '-') -- the first write needs no memory: see lease.lua

-- read parses an entry. Its time is never in the future, although Redis's clock may have been set back.
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
