-- Reads the jobs that are written down and not published.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      how many at most, the number after which
-- Returns   number, kind, id for each, in order of their numbers
local P = KEYS[1]
local found = {}
for _, n in ipairs(redis.call('ZRANGEBYSCORE', P .. ':migrate:backs', '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[1])) do
  local e = redis.call('HMGET', P .. ':migrate:back:' .. n, 'kind', 'id')
  found[#found + 1] = {tonumber(n), e[1] or '', e[2] or ''}
end
return found
