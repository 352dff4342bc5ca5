-- morgue_trim: forget what the morgue holds beyond what its queue keeps, the ids buried first.
--
--#keys claim morgue dead count spill spillx
-- ARGV  1 instance  2 fence  3 most ids that are kept, '' any number  4 for how long one is, us; '' for ever
-- Returns {payloads forgotten, 1 if there is more to forget}; see lib/measure.lua.
-- Errors: FENCED holder fence
--#include claimed
--#include record
--#include spill
--#include measure
--#include forget
local time = redis.call('TIME')
local most = tonumber(ARGV[3]) or math.huge
local before = ARGV[4] == '' and -1 or time[1] * 1000000 + time[2] - ARGV[4]
local held, gone = redis.call('ZCARD', KEY.dead), 0
while true do
  local first = redis.call('ZRANGE', KEY.dead, 0, 0, 'WITHSCORES')
  if not first[1] or held <= most and tonumber(first[2]) > before then return {gone, 0} end
  local record = redis.call('HGET', KEY.morgue, first[1])
  if record then
    local n, more = forget(first[1], record)
    gone = gone + n
    if more then return {gone, 1} end
  else
    redis.call('ZREM', KEY.dead, first[1])
  end
  held = held - 1
  weigh_id()
  if enough() then return {gone, 1} end
end
