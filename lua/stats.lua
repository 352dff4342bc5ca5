-- stats: one shard in figures. Reads only.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 suspects  8 count  9 dead  10 claim  11 stale
-- Returns {now us, ready, scheduled, retry, in flight, blocked, ids in the morgue, payloads in the
--         morgue, processed, failed, due time us of the oldest due job or '', holder, fence}
-- The oldest due job is the head of the ready list or of those that became due since the last pop.
--#include record
--#include sound
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count = redis.call('HMGET', KEYS[8], 'tombs', 'morgue', 'processed', 'failed')
for i = 1, 4 do count[i] = tonumber(count[i] or 0) end
local left = redis.call('HLEN', KEYS[11])
local oldest

local function see(at)
  if at and at <= now and (not oldest or at < oldest) then oldest = at end
end

for _, key in ipairs({KEYS[2], KEYS[7]}) do
  for _, id in ipairs(redis.call('LRANGE', key, 0, 9)) do
    local record = redis.call('HGET', KEYS[1], id)
    if left > 0 and redis.call('HEXISTS', KEYS[11], id) == 1 then record = false end
    local job = record and head_if(record)
    if job then
      see(job.at)
      break
    end
  end
end
for _, key in ipairs({KEYS[3], KEYS[4]}) do
  see(tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
end
local holder = redis.call('HMGET', KEYS[10], 'instance', 'fence')
return {string.format('%.0f', now),
  redis.call('LLEN', KEYS[2]) + redis.call('LLEN', KEYS[7]) - count[1] - left,
  redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]), redis.call('LLEN', KEYS[6]),
  redis.call('ZCARD', KEYS[5]), redis.call('ZCARD', KEYS[9]), count[2], count[3], count[4],
  oldest and string.format('%.0f', oldest) or '', holder[1] or '', holder[2] or '0'}
