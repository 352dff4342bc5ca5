-- resume: go on with taking back what was in flight under an earlier claim.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due
--#keys journal journalx reply progress
-- ARGV  1 instance  2 fence
-- Returns {jobs that were in flight, payloads buried as crashes, ids still to be taken out of flights}
-- Errors: FENCED holder fence
-- To repeat it goes on, or does nothing. Until nothing is left pops are refused.
--#include claimed
--#include judge
if not claim.recover then return {0, 0, 0} end
local count, left = take_back('', '')
return {count, buried, left}
