-- release: give a shard up. Everything in flight goes back to the head, no retry spent, nobody
-- put on probation; the next owner is woken.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx
-- ARGV  1 instance  2 fence  3 channel that wakes the next owner
-- Returns the number of jobs that were in flight.
-- Errors: FENCED holder fence
--#include claimed
--#include record
--#include spill
--#include recover
local count = recover()
redis.call('HDEL', KEYS[1], 'instance', 'pop')
redis.call('HDEL', KEYS[2], '') -- see the end of claim.lua
redis.call('PUBLISH', ARGV[3], '0')
return count
