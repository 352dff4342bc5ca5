-- audit_states: read some of the ids that have states. It leaves out the states, which may be large. Reads only.
--
--#keys states
-- ARGV  1 cursor, of HSCAN
-- Returns {the next cursor, then ids}
local found = redis.call('HSCAN', KEY.states, ARGV[1], 'COUNT', 20)
local out = {found[1]}
for i = 1, #found[2], 2 do out[#out + 1] = found[2][i] end
return out
