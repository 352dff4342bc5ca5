-- morgue_delete: forget what the morgue holds of these ids.
--
-- KEYS  1 morgue  2 dead  3 count  4 spill  5 spillx
-- ARGV  ids (at most 1,000)
-- Returns {the number of ids that were there, of how many this call was}; see measure.lua.
--#include record
--#include spill
--#include measure
local count, looked = 0, 0
for i = 1, #ARGV do
  local id = ARGV[i]
  local record = redis.call('HGET', KEYS[1], id)
  if record then
    weigh(record)
    redis.call('HDEL', KEYS[1], id) -- first what frees memory: see lease.lua
    redis.call('ZREM', KEYS[2], id)
    spill_drop(KEYS[4], KEYS[5], 'm', id, record)
    redis.call('HINCRBY', KEYS[3], 'morgue', -parse(record).n)
    count = count + 1
  end
  looked = looked + 1
  if enough() then break end
end
return {count, looked}
