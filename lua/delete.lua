-- delete: forget what waits for these ids; a flight goes on.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale
-- ARGV  1 '' or the place an id must be in: ready, scheduled, retry, blocked  then ids (at most 1,000)
-- Returns {the number of ids of which something was deleted, of how many this call was}; see measure.lua.
--#include record
--#include spill
--#include waiting
--#include measure
local count, looked = 0, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local record, busy = waiting(id)
  if record and placed(ARGV[1], id, busy) then
    weigh(record)
    remove(id, record, busy)
    count = count + 1
  end
  looked = looked + 1
  if enough() then break end
end
return {count, looked}
