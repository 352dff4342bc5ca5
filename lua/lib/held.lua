-- Included by scripts that distinguish held ids from scheduled ids. The due time (us) of a held id is
-- one second after the latest time that a push can ask for (lowkiq.MaxPerformAt). So it is behind all
-- others in due or retry, pushed payloads join it, and no other script needs to know about holds.
local held_at = 8589934593000000

-- is_held reports whether a due time, or false, is that of a held id. It converts the time by
-- arithmetic, because tonumber of the embedded Redis does not read 2e+15.
local function is_held(at) return at and at + 0 >= held_at end
