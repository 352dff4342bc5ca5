-- resume: continue to put the flights of an earlier claim back.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due
--#keys journal journalx reply progress urgent stale out
-- ARGV  1 instance  2 fence
-- Returns {jobs that were put back, payloads buried as crashes, ids that are still in flights}
-- Errors: FENCED holder fence
-- A repeated call continues, or does nothing. Pops are refused until no id is left, so no later job overtakes
-- a job that is not put back yet (I3).
--#include claimed
--#include judge
if not claim.recover then return {0, 0, 0} end
local count, left = take_back('', '')
return {count, buried, left}
