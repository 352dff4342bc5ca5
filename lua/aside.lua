-- aside: take ids with unreadable records out of their flight, so that they stop no other id.
--
--#keys claim jobs ready due flight parked crashes aside count urgent stale
-- ARGV  1 instance  2 fence  3 flight  then ids
-- Returns the number of ids that were in the flight until now.
-- Errors: FENCED holder fence
-- Keeps I2: the records stay unchanged in the hash aside, where a repair puts such records, too. Payloads
-- that were pushed meanwhile become a new job.
--#include claimed
--#include take_out
--#include urgent
--#include enqueue
--#include record
--#include sound
--#include set_aside

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--#include gone
local taken = take_out(KEY.flight, KEY.crashes, ARGV[3], {unpack(ARGV, 4)})
for _, id in ipairs(taken) do
  local record = redis.call('HGET', KEY.jobs, id)
  if record then set_aside('jobs:' .. id, record) end
  gone(id)
end
return #taken
