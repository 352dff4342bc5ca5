-- aside: take ids whose records cannot be read out of their flight, so that they stop nobody else.
--
-- KEYS  1 claim  2 jobs  3 ready  4 due  5 flight  6 parked  7 crashes  8 aside
-- ARGV  1 instance  2 fence  3 flight  then ids
-- Returns the number of ids that were in the flight until now.
-- Errors: FENCED holder fence
-- Keeps I2: the records stay, as they are, in the hash aside, where a repair puts such records
-- too. What was pushed meanwhile waits by itself.
--#include claimed
--#include take_out
--#include enqueue
--#include record
--#include sound

local function set_aside(id)
  local record = redis.call('HGET', KEYS[2], id)
  if not record then return end
  local field = 'jobs:' .. id
  while redis.call('HEXISTS', KEYS[8], field) == 1 do field = field .. '+' end
  redis.call('HSET', KEYS[8], field, record)
  redis.call('HDEL', KEYS[2], id)
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local taken = take_out(KEYS[5], KEYS[7], ARGV[3], {unpack(ARGV, 4)})
for _, id in ipairs(taken) do
  set_aside(id)
  local parked = redis.call('HGET', KEYS[6], id)
  if parked and readable(parked) then unpark(KEYS[2], KEYS[3], KEYS[4], KEYS[6], id, parked, now) end
end
return #taken
