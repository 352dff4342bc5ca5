-- rate: how many of some batches of a queue may be handed out now?
--
--#keys rate
-- ARGV  1 us per id  2 burst: ids at once after a rest  3 maximum us before a batch that has to wait asks again
--       4... numbers of ids of the batches, in the order of their turns
-- Returns {batches that may be handed out, ids that the rate allows beyond them, us after which the next batch asks,
--         or the next id if all batches may be handed out}
-- The rate is a leaky bucket, as the generic cell rate algorithm of ITU-T I.371. Ids that are handed out are owed, and
-- are worked off at the rate. A batch may be handed out if at most burst ids are owed then, or if only its own ids
-- are owed. The first batch that has to wait keeps the batches behind it waiting.
--
-- The key is "<at> <owed> <step> <large> <since> <until>". owed is the number of owed ids at the time at (us), and step
-- is the us that each of them takes. large, since and until describe the largest waiting batch: its number of ids, when
-- it began to wait, and until when it is expected to ask again. Smaller batches of other nodes overtake it for as long
-- as its ids take by the rate, and no longer. The key expires when no id is owed and no batch is expected any more. A
-- missing key stands for an unused rate.
--#include owed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local step, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local text = redis.call('GET', KEY.rate) or ''
local at, owed, drain, large, since, till = string.match(text, '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+)')
at, owed, drain = tonumber(at or now), tonumber(owed or 0), tonumber(drain or step)
large, since, till = tonumber(large or 0), tonumber(since or 0), tonumber(till or 0)
local back = math.max(0, at - now) -- how far Redis's clock was set back
since, till = since - back, till - back
if till <= now then large = 0 end
local was = drain
owed, drain = still_owed(owed, at, drain, now, step)
local changed = back > 0 or drain < was

-- wait returns the us after which a batch of n ids may be handed out, 0 for now.
local function wait(n)
  local before = owed
  if n < large and now >= since + large * step then before = owed + large end
  return math.max(0, math.ceil((before + n - math.max(burst, n) - 0.000000001) * drain))
end

local n, may = 1, 0
for i = 4, #ARGV do
  n = tonumber(ARGV[i])
  if wait(n) > 0 then break end
  may, owed, drain = may + 1, owed + n, step
  if n >= large then large = 0 end
  n = 1
end
if may < #ARGV - 3 and n > 1 and n >= large then
  if large == 0 then since = now end
  large, till, changed = n, now + math.min(wait(n), tonumber(ARGV[3])) + 1000000, true
end
if may > 0 or changed then
  redis.call('PEXPIRE', KEY.rate, 60000) -- the first write needs no memory: see lease.lua
  redis.call('SET', KEY.rate, string.format('%.0f %.9f %.3f %d %.0f %.0f', now, owed, drain, large, math.max(0, since), math.max(0, till)),
    'PX', string.format('%.0f', math.ceil(math.max(owed * drain, till - now) / 1000) + 1))
end
local left = math.max(0, math.floor(burst - owed + 0.000000001))
if wait(1) > 0 then left = 0 end
return {may, left, wait(n)}
