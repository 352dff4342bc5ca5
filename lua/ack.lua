-- ack: the ids named are done.
--
--#keys claim jobs ready due flight parked crashes count
-- ARGV  1 instance  2 fence  3 channel that wakes the owner  then groups: flight, count, ids;
--       count 0 means all that is left of the flight
-- Returns the number of ids that were in their flight until now; the others are no-ops,
-- so a repeated or late ack cannot touch a newer flight of the same id (I1).
-- Errors: FENCED holder fence
--#include claimed
--#include take_out
--#include enqueue
--#include finish
local done, again = finish(KEY.jobs, KEY.ready, KEY.due, KEY.flight, KEY.parked, KEY.crashes, KEY.count, 4, #ARGV)
-- An ack by itself is sent when no pop is near: the owner may be asleep.
if again > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return done
