-- scan: read ids of a hash of records, in stored order. Reads only.
--
--#keys jobs
-- ARGV  1 cursor of HSCAN  2 about how many
-- Returns {next cursor, bytes of the records seen, id, …}; tombstones are left out.
local found = redis.call('HSCAN', KEY.jobs, ARGV[1], 'COUNT', ARGV[2])
local answer, bytes = {found[1], 0}, 0
for i = 1, #found[2], 2 do
  local id, record = found[2][i], found[2][i + 1]
  bytes = bytes + #record
  if id ~= '' and record ~= 'x' then answer[#answer + 1] = id end -- '': see the end of claim.lua
end
answer[2] = bytes
return answer
