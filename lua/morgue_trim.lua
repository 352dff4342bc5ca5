-- morgue_trim: delete the ids in the morgue beyond the bounds of the queue, the ids buried first.
--
--#keys claim morgue dead count spill spillx
-- ARGV  1 instance  2 fence  3 maximum number of ids  4 maximum age of a burial (us); in 3 and 4, '' is no bound
-- Returns {deleted payloads, 1 if more may be left to delete, else 0}; see lib/measure.lua.
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
