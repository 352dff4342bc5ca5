-- repair_claim: a claim whose fence is no number is given up, as a release would do it. No claim
-- could follow it. The next fence is that of a counter that Redis has lost: see claim.lua.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress
-- ARGV  1 channel that wakes the next owner  2 holder as read ('' if none)  3 fence as read ('' if none)
-- Returns 1, 2 if there is more to do: repeat it, or 0 if the claim has changed.
-- The caller knows that the holder has no lease; an expired lease never returns (I1).
local claim = {}
do
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if (claim.instance or '') ~= ARGV[2] or (claim.fence or '') ~= ARGV[3] then return 0 end
--#include record
--#include spill
--#include measure
--#include recover
if recovery('self') then
  local _, left = recover()
  if left > 0 then return 2 end
end
redis.call('HDEL', KEY.claim, 'instance', 'fence', 'pop')
redis.call('HDEL', KEY.jobs, '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[1], '0')
return 1
