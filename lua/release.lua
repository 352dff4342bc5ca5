-- release: give up a shard. Jobs in flight go back to the head. That counts as no retry, and puts no id in
-- quarantine. The script wakes the next owner.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress urgent stale count
-- ARGV  1 instance  2 fence  3 channel that wakes the next owner
-- Returns {jobs that were in flight, ids that are still in flight}. While ids are in flight, the shard is not
-- given up, and the caller repeats the call.
-- Errors: FENCED holder fence
-- Keeps I1 and I2. The script deletes the holder only after the last id has left the flights. So the next owner
-- finds every job in the ready list or in quarantine. The fence stays, and the next claim takes a higher fence.
--#include claimed
--#include record
--#include spill
--#include measure
--#include urgent
--#include recover
local count, left = 0, 0
if recovery('self') then count, left = recover() end
if left > 0 then return {count, left} end
redis.call('HDEL', KEY.claim, 'instance', 'pop')
redis.call('HDEL', KEY.jobs, '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[3], '0')
return {count, 0}
