-- join: parts of a day that are not written any more become one with what was joined before.
--
--#keys day
-- ARGV  1 field joined as it was read, '' if there was none  2 what it is to be: that and the parts
--       then of each part its name and its text as it was read (at most 100, 256 KiB)
-- Returns 1, or 0: one of them is not as it was read, and nothing was done
-- A part is taken once: a mark takes its place, see tally.lua. One that was written once, by a process that ended, needs none.
if (redis.call('HGET', KEY.day, 'joined') or '') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if redis.call('HGET', KEY.day, ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('HSET', KEY.day, 'joined', ARGV[2])
for i = 3, #ARGV, 2 do
  local number = string.match(ARGV[i + 1], '^%d+') or '0'
  if number == '0' then
    redis.call('HDEL', KEY.day, ARGV[i])
  else
    redis.call('HSET', KEY.day, ARGV[i], number .. ' ' .. now)
  end
end
return 1
