-- delete: delete the waiting payloads of ids. Flights go on.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
--#keys reply out
-- ARGV  1 '1' if the call before this one began with the first id  2 '' or the place an id must be in: ready, scheduled,
--       retry, blocked, failed  then ids (at most 1,000)
-- Returns {ids with deleted payloads, ids that this call has looked at, '1' if the call ended within an id
--         and more of its payloads are left}; see lib/measure.lua.
--#include record
--#include spill
--#include waiting
--#include tell
--#include measure
local count, looked = 0, 0
for i = 3, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if record and placed(ARGV[2], id, busy) then
    if not begun(i, 3) then count = count + 1 end
    weigh(1, #record)
    local sound, job = pcall(parse, record)
    if not sound then job = {bytes = math.huge} end
    if string.byte(record, 1) == 115 then
      local piece = spill_take(KEY.spill, KEY.spillx, 'w', id, job)
      weigh(piece.n, piece.bytes)
      weigh(tell(piece.data, 'deleted', id), 0)
      if job.n > 0 then
        if sound then redis.call('HSET', busy and KEY.parked or KEY.jobs, id, head('s', job)) end
        return {count, looked, 1}
      end
    end
    remove(id, busy) -- the first write frees memory: see lease.lua
    if sound then weigh(tell(job.data, 'deleted', id), 0) end
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
return {count, looked, 0}
