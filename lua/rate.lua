-- rate: which of some batches of a queue may be handed out now?
--
--#keys rate
-- ARGV  1 us per id  2 how many ids at once after a rest  3 within how many us who has to wait asks again
--       4... how many ids each batch has, in the order of their turns
-- Returns {how many of the batches may, how many ids more might, after how many us to ask for the next batch, or an id}
-- A leaky bucket (as the generic cell rate algorithm, ITU-T I.371): what was handed out is owed, and worked off at the rate. A batch
-- may go if no more is owed then than a rest allows, or than it has itself, if that is more. The first batch that may not keeps those
-- behind it waiting.
--
-- The key is "<at> <owed> <step> <large> <since> <until>": ids owed at a time (us), and us each of them takes. The rest is about the
-- largest batch that waits: how many ids it has, since when, and until when it is expected to be asked for again. Smaller ones of other
-- nodes overtake it for as long as its ids take by the rate, and no longer.
--#include owed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local step, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local text = redis.call('GET', KEY.rate) or ''
local at, owed, drain, large, since, till = string.match(text, '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+)')
at, owed, drain = tonumber(at or now), tonumber(owed or 0), tonumber(drain or step)
large, since, till = tonumber(large or 0), tonumber(since or 0), tonumber(till or 0)
local back = math.max(0, at - now) -- so far Redis's clock was set back
since, till = since - back, till - back
if till <= now then large = 0 end
local was = drain
owed, drain = still_owed(owed, at, drain, now, step)
local changed = back > 0 or drain < was

-- wait is after how long a batch of n may, 0: now.
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
  redis.call('PEXPIRE', KEY.rate, 60000) -- a first write that cannot grow, for a Redis out of memory: see lease.lua
  redis.call('SET', KEY.rate, string.format('%.0f %.9f %.3f %d %.0f %.0f', now, owed, drain, large, math.max(0, since), math.max(0, till)),
    'PX', string.format('%.0f', math.ceil(math.max(owed * drain, till - now) / 1000) + 1))
end
local left = math.max(0, math.floor(burst - owed + 0.000000001))
if wait(1) > 0 then left = 0 end
return {may, left, wait(n)}
