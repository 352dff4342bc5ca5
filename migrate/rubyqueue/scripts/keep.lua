-- Keeps entries that the new queue has for some time, so that they can go back as they were.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, for how many seconds, numbers of entries
-- Returns   how many entries are kept
-- Errors    TAKENOVER: another run has begun since
local P, seconds = KEYS[1], ARGV[2]
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
for i = 3, #ARGV do
  local n = ARGV[i]
  local e = redis.call('HMGET', P .. ':migrate:entry:' .. n, 'kind', 'id')
  if e[1] and redis.call('ZREM', P .. ':migrate:taken', n) == 1 then
    local field = string.sub(e[1], 1, 1) .. e[2]
    local before = redis.call('HGET', P .. ':migrate:kept', field)
    redis.call('HSET', P .. ':migrate:kept', field, before and before .. ' ' .. n or n)
    for _, key in ipairs({'entry:', 'payloads:', 'processing:'}) do redis.call('EXPIRE', P .. ':migrate:' .. key .. n, seconds) end
  end
end
redis.call('EXPIRE', P .. ':migrate:kept', seconds)
return #ARGV - 2
