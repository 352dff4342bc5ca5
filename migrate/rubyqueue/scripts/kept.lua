-- Reads entries by their numbers.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      how many bytes to answer at most, numbers
-- Returns   the entries, see shown; "" for an entry that is gone; fewer than given if the bytes reach their limit
local P = KEYS[1]
most = tonumber(ARGV[1])
local found = {}
for i = 2, #ARGV do
  found[#found + 1] = redis.call('EXISTS', P .. ':migrate:entry:' .. ARGV[i]) == 1 and entry(P, ARGV[i]) or ''
  if size >= most then break end
end
return found
