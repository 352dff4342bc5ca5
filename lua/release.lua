-- release: give a shard up. Everything in flight goes back to the head, no retry spent, no id
-- put in quarantine; the next owner is woken.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed progress
-- ARGV  1 instance  2 fence  3 channel that wakes the next owner
-- Returns {the number of jobs that were in flight, ids still in flight}: until none is the shard is not given up,
-- and the call is to be repeated.
-- Errors: FENCED holder fence
--#include claimed
--#include record
--#include spill
--#include measure
--#include recover
local count, left = 0, 0
if recovery('self') then count, left = recover() end
if left > 0 then return {count, left} end
redis.call('HDEL', KEY.claim, 'instance', 'pop')
redis.call('HDEL', KEY.jobs, '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[3], '0')
return {count, 0}
