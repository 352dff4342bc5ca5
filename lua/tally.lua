-- tally: what a process has counted of a queue's day, or hour: all of it each time.
--
--#keys day
-- ARGV  1 part, of which one process alone writes  2 number of the write: one more each time, the same if it is sent again;
--         0: the only write of the part, by a process that ends and sends it for a minute at most
--       3 figures  4 for how long they are kept, ms  5 when this write was sent first, us
-- Returns {'written', 0}, or {'joined', number of the last write that join.lua took, 0 if that is not known}
-- To repeat it changes nothing, also if it comes after a later write, or after the part was joined. The mark of that is kept for
-- an hour, so a write that was sent first within half an hour, and finds none, was not joined itself: the one before it was.
-- An older one may have been, and is not written. The only write of a part leaves no mark: it is joined after two minutes, and
-- not written after one.
--
-- Field <part> of day is "<number> <us> <figures>", and "<number> <us>", a mark, once it is joined.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local is, number, age = redis.call('HGET', KEY.day, ARGV[1]), tonumber(ARGV[2]), now - tonumber(ARGV[5])
if number == 0 and age > 60000000 then return {'joined', 0} end
if is then
  local last = string.match(is, '^(%d+) %d+ ')
  if not last then return {'joined', tonumber(string.match(is, '^%d+') or 0)} end
  if number < tonumber(last) then return {'written', 0} end
elseif number > 0 and redis.call('HEXISTS', KEY.day, 'joined') == 1 then
  if age > 1800000000 then return {'joined', 0} end
  if number > 1 then return {'joined', number - 1} end
end
redis.call('HSET', KEY.day, ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEY.day, ARGV[4])
return {'written', 0}
