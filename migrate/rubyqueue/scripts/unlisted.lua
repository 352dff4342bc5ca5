-- Counts the payloads of ids that no index has.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      for each pile of payloads: the name of its key up to the id, the id, and the index that would have the id, or '' for no index
-- Returns   for each the number of payloads; 0 if the index has the id, or the key is not a pile
local P, found = KEYS[1], {}
for i = 1, #ARGV, 3 do
  local pile = P .. ':' .. ARGV[i] .. ARGV[i + 1]
  local n = 0
  if redis.call('TYPE', pile).ok == 'zset' and (ARGV[i + 2] == '' or not redis.call('ZSCORE', P .. ':' .. ARGV[i + 2], ARGV[i + 1])) then
    n = redis.call('ZCARD', pile)
  end
  found[#found + 1] = n
end
return found
