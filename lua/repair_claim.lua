-- repair_claim: release a shard whose claim has a fence that is no number, as release.lua would. No instance could
-- claim the shard otherwise. The script deletes the fence, and the next fence rises as after a loss: see claim.lua.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress urgent stale count
-- ARGV  1 channel that wakes the next owner  2 holder as read ('' if none)  3 fence as read ('' if none)
-- Returns 1; 2 if ids are left, and the caller repeats the call; 0 if the claim has changed.
-- Keeps I1: the caller has seen that the holder has no lease, and an expired lease never returns.
local claim = {}
do
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if (claim.instance or '') ~= ARGV[2] or (claim.fence or '') ~= ARGV[3] then return 0 end
--#include record
--#include spill
--#include measure
--#include urgent
--#include recover
if recovery('self') then
  local _, left = recover()
  if left > 0 then return 2 end
end
redis.call('HDEL', KEY.claim, 'instance', 'fence', 'pop')
redis.call('HDEL', KEY.jobs, '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[1], '0')
return 1
