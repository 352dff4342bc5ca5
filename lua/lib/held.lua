-- Included by scripts that tell held ids from those that wait for their time: a held id is due, us, a second after the last
-- time that a push can ask for (lowkiq.MaxPerformAt), in due or in retry. So it stands behind all others, what is pushed joins
-- it, and no other script needs to know of holds.
local held_at = 8589934593000000

-- is_held says whether a time in due or retry, or false, is that of a held id. Arithmetic reads it: tonumber of the embedded
-- Redis does not know 2e+15, as it writes a round time.
local function is_held(at) return at and at + 0 >= held_at end
