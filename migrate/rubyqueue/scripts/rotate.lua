-- Gives a run another source.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the run, the new source
-- Returns   the source that must be sealed, and the last number
-- Errors    TAKENOVER: another run has begun since
local P = KEYS[1]
if redis.call('GET', P .. ':migrate:run') ~= ARGV[1] then
  return redis.error_reply('TAKENOVER another migration of this queue has begun since')
end
local source = redis.call('GET', P .. ':migrate:source')
if source == ARGV[2] then return redis.call('GET', P .. ':migrate:sealing') end -- the answer was lost
local sealing = source .. ' ' .. redis.call('GET', P .. ':migrate:number')
redis.call('SET', P .. ':migrate:sealing', sealing)
redis.call('SET', P .. ':migrate:source', ARGV[2])
return sealing
