-- delete: forget what waits for these ids; a flight goes on.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 late
-- ARGV  1 '1' if the call before this one began with the first id  2 '' or the place an id must be in: ready, scheduled,
--       retry, blocked, failed  then ids (at most 1,000)
-- Returns {the number of ids of which something was deleted, of how many this call was, '1' if it began with one more
--         and more payloads of it are left}; see lib/measure.lua.
--#include record
--#include spill
--#include waiting
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
      local piece = spill_take(KEYS[11], KEYS[12], 'w', id, job)
      weigh(piece.n, piece.bytes)
      if job.n > 0 then
        if sound then redis.call('HSET', busy and KEYS[7] or KEYS[1], id, head('s', job)) end
        return {count, looked, 1}
      end
    end
    remove(id, busy)
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
return {count, looked, 0}
