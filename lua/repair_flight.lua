-- repair_flight: a flight that nobody owns goes back to the head, as a release would do it.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx  10 late
-- ARGV  1 channel that wakes the next owner
-- Returns 1, 2 if there is more to do: repeat it, or 0 if there is nothing to mend, or somebody owns the
--         shard: flights of an owner are left alone (I1).
local claim = {}
do
  local flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if claim.instance then return 0 end
local left = redis.call('LLEN', KEYS[4]) > 0
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
