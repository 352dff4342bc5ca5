-- repair_flight: put the flights of a shard without an owner back to the head, as release.lua would.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress urgent stale count
-- ARGV  1 channel that wakes the next owner
-- Returns 1; 2 if ids are left, and the caller repeats the call; 0 if no flight is open or an instance owns the shard.
-- Keeps I1, because it leaves the flights of an owner alone.
local claim = {}
do
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if claim.instance then return 0 end
local left = redis.call('LLEN', KEY.flight) > 0
for field in pairs(claim) do left = left or string.byte(field, 1) == 35 end
if not left then return 0 end
--#include record
--#include spill
--#include measure
--#include urgent
--#include recover
if recovery('self') then
  local _, more = recover()
  if more > 0 then return 2 end
end
redis.call('PUBLISH', ARGV[1], '0')
return 1
