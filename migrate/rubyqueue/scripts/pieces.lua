-- Reads payloads of a pile, with their scores.
--
-- KEYS[1]   the pile
-- ARGV      the rank of the first payload, how many bytes to answer at most (but for one payload), how many payloads at most
-- Returns   payload and score in turn; nothing after the last
local found, size, at = {}, 0, tonumber(ARGV[1])
local last = at + tonumber(ARGV[3])
while size < tonumber(ARGV[2]) and at < last do
  local one = redis.call('ZRANGE', KEYS[1], at, at, 'WITHSCORES') -- one at a time, because any may be large
  if #one == 0 then break end
  found[#found + 1], found[#found + 2] = one[1], one[2]
  size, at = size + #one[1], at + 1
end
return found
