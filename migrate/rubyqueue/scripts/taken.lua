-- Reads entries that were taken.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      how many bytes to answer at most, how many entries at most, the number after which
-- Returns   the entries in order of their numbers, see shown
local P = KEYS[1]
most = tonumber(ARGV[1])
local found = {}
for _, n in ipairs(redis.call('ZRANGEBYSCORE', P .. ':migrate:taken', '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[2])) do
  found[#found + 1] = entry(P, n)
  if size >= most then break end
end
return found
