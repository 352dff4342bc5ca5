-- morgue_delete: delete the payloads of ids in the morgue.
--
--#keys morgue dead count spill spillx
-- ARGV  1 '1' if the call before this one began with the first id  then ids (at most 1,000)
-- Returns {ids that were in the morgue, ids that this call has looked at, '1' if the call ended within an
--         id and more of its payloads are left}; see lib/measure.lua.
--#include record
--#include spill
--#include measure
--#include forget
local count, looked = 0, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local record = redis.call('HGET', KEY.morgue, id)
  if record then
    if i > 2 or ARGV[1] ~= '1' then count = count + 1 end
    local _, more = forget(id, record)
    if more then return {count, looked, 1} end
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
return {count, looked, 0}
