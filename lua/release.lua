-- release: give a shard up. Everything in flight goes back to the head, no retry spent, nobody
-- put on probation; the next owner is woken.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx  10 late
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
redis.call('HDEL', KEYS[1], 'instance', 'pop')
redis.call('HDEL', KEYS[2], '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[3], '0')
return {count, 0}
