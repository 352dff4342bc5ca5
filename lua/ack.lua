-- ack: acknowledge ids, whose jobs are done.
--
--#keys claim jobs ready due flight parked crashes count urgent stale
-- ARGV  1 instance  2 fence  3 channel that wakes the owner  then groups of flight, count, ids;
--       count 0 stands for all ids of the flight
-- Returns the number of ids that were in their flight until now. The script ignores other ids, so a
-- repeated or late ack cannot end a newer flight of the same id (I1).
-- Errors: FENCED holder fence
--#include claimed
--#include take_out
--#include urgent
--#include enqueue
--#include finish
local done, again = finish(KEY.jobs, KEY.ready, KEY.due, KEY.flight, KEY.parked, KEY.crashes, KEY.count, 4, #ARGV)
-- An ack without a pop comes when the owner has no other work. The message wakes it.
if again > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return done
