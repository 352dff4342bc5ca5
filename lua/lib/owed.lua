-- Included by scripts that know a rate.

-- still_owed returns how many ids of a rate's bucket are not worked off yet, and the time (us) that each
-- takes from now on. owed ids were left at the time at, and each took step. The present rate takes
-- step_now per id. A faster rate applies at once. A slower rate applies to the next ids that are handed
-- out. Some nodes may still use the faster rate, and all nodes together then hand out at most what that
-- rate allows.
local function still_owed(owed, at, step, now, step_now)
  if step <= 0 then return 0, step_now end
  return math.max(0, owed - math.max(0, now - at) / step), math.min(step, step_now)
end
