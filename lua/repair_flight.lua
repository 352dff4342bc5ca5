-- repair_flight: a flight without an owner goes back to the head, as a release would do it.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress
-- ARGV  1 channel that wakes the next owner
-- Returns 1, 2 if there is more to do: repeat it, or 0 if there is nothing to mend, or an instance owns the
--         shard: flights of an owner are left alone (I1).
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
--#include recover
if recovery('self') then
  local _, more = recover()
  if more > 0 then return 2 end
end
redis.call('PUBLISH', ARGV[1], '0')
return 1
