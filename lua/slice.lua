-- slice: read a part of a sorted set of times, behind a place. Reads only.
--
--#keys set
-- ARGV  1 maximum number of members  2 '1': largest first  3 lowest score  4 highest score
--       5 score of the place ('' for the first part)  6 member of the place
-- Returns {number of members behind the place, within the scores; member, score, …}
--#include before
local most, reverse = tonumber(ARGV[1]), ARGV[2] == '1'

local function below(score) return redis.call('ZCOUNT', KEY.set, '-inf', score) end

local low = ARGV[3] == '-inf' and 0 or below('(' .. ARGV[3])
local stop = below(ARGV[4])
if ARGV[5] ~= '' then
  local place = count_before(KEY.set, ARGV[5], ARGV[6], not reverse)
  if reverse then stop = math.min(stop, place) else low = math.max(low, place) end
end
local n = math.max(0, stop - low)
local answer = {n}
if math.min(n, most) > 0 then
  local flat
  if reverse then
    local size = redis.call('ZCARD', KEY.set)
    flat = redis.call('ZREVRANGE', KEY.set, size - stop, size - stop + math.min(n, most) - 1, 'WITHSCORES')
  else
    flat = redis.call('ZRANGE', KEY.set, low, low + math.min(n, most) - 1, 'WITHSCORES')
  end
  for i = 1, #flat do answer[i + 1] = flat[i] end
end
return answer
