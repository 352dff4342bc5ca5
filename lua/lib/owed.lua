-- Included by scripts that know a rate.

-- owed is how many of the ids that were handed out by a rate are not worked off yet, of so many at a time, at so many us each;
-- and how many us each takes from now on. A rate that is faster now works off faster at once. A slower one does once ids are handed
-- out by it: nodes may go by the old one for a while, and what they ask in turn must let go no more than the faster one.
local function still_owed(owed, at, step, now, step_now)
  if step <= 0 then return 0, step_now end
  return math.max(0, owed - math.max(0, now - at) / step), math.min(step, step_now)
end
