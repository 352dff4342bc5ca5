-- Ends a migration that has no entry left. The next migration gets another source. Numbers continue while entries are kept.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, how many ids are in flight, '1' if the source must be sealed
-- Returns   how many entries are still taken, 0 if the run is ended; the source that must be sealed and the last number, or ''
-- Errors    TAKENOVER: another run has begun since
local P = KEYS[1]
local run = redis.call('GET', P .. ':migrate:run')
if not run then return {0, redis.call('GET', P .. ':migrate:sealing') or ''} end -- the run has ended and the answer was lost
if run ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
local lengths = P .. ':processing_length_by_shard'
if ARGV[2] == '0' then
  redis.call('DEL', lengths)
else
  local all = redis.call('HGETALL', lengths)
  for i = 1, #all, 2 do -- marks do not count
    local n, marked = string.match(all[i + 1], '^(.*)( migrate)$')
    if marked and n == '0' then redis.call('HDEL', lengths, all[i]) elseif marked then redis.call('HSET', lengths, all[i], n) end
  end
end
local under_way = redis.call('ZCARD', P .. ':migrate:taken')
if under_way > 0 then return {under_way, ''} end
local sealing = ''
if ARGV[3] == '1' then
  sealing = redis.call('GET', P .. ':migrate:source') .. ' ' .. redis.call('GET', P .. ':migrate:number')
  redis.call('SET', P .. ':migrate:sealing', sealing)
end
redis.call('DEL', P .. ':migrate:run')
redis.call('DEL', P .. ':migrate:source')
if redis.call('EXISTS', P .. ':migrate:kept') == 0 and redis.call('EXISTS', P .. ':migrate:backs') == 0 then
  redis.call('DEL', P .. ':migrate:number')
else
  redis.call('EXPIRE', P .. ':migrate:number', 31536000) -- longer than anything is kept
end
return {0, sealing}
