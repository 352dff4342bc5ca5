-- Ends a migration of which nothing is under way: the next one has another name, and numbers from 1.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, and how many shards have something in flight
-- Returns   how many entries are taken yet: 0 if it is ended
-- Errors    TAKENOVER: another run has begun since
local P = KEYS[1]
local run = redis.call('GET', P .. ':migrate:run')
if not run then return 0 end -- it is ended: the answer was lost
if run ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
if ARGV[2] == '0' then redis.call('DEL', P .. ':processing_length_by_shard') end
local under_way = redis.call('ZCARD', P .. ':migrate:taken')
if under_way == 0 then
  redis.call('DEL', P .. ':migrate:run')
  redis.call('DEL', P .. ':migrate:source')
  redis.call('DEL', P .. ':migrate:number')
end
return under_way
