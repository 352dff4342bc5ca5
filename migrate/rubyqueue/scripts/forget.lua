-- Deletes entries that the new queue has.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, how many payloads to delete at most, numbers of entries
-- Returns   how many entries are deleted; fewer than given if the payloads reach their limit, then run it again
-- Errors    TAKENOVER: another run has begun since
local P, room = KEYS[1], tonumber(ARGV[2])
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
for i = 3, #ARGV do
  local n = ARGV[i]
  for _, key in ipairs({P .. ':migrate:payloads:' .. n, P .. ':migrate:processing:' .. n}) do
    local size = redis.call('ZCARD', key)
    if size > room then
      redis.call('ZREMRANGEBYRANK', key, 0, room - 1)
      return i - 3
    end
    redis.call('DEL', key)
    room = room - size
  end
  redis.call('DEL', P .. ':migrate:entry:' .. n)
  redis.call('ZREM', P .. ':migrate:taken', n)
  if room <= 0 then return i - 2 end
end
return #ARGV - 2
