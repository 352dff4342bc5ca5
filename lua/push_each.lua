-- push_each: put fresh jobs into many shards, a few into each, in one call. Redis takes longer to
-- start a script than to store a job; callers that push one by one would pay that for each shard.
-- Not for a Redis Cluster, where the shards are in different slots.
--
-- KEYS  per job: jobs, ready, count of its shard
-- ARGV  per job: id, form (a or e), tail, channel to wake the owner; form and tail as in push.lua
-- Returns one character per job: 0 stored, x the id is not fresh, or the queue is deleted (nothing was done;
--         push.lua can, or says so).
-- Keeps I2 and I3 as push.lua does. Shards are independent: each job is a step of its own.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {}

--#include micros

local due_now = b7(now)
local i = 0
for p = 1, #ARGV, 4 do
  local k = i * 3
  i = i + 1
  local id, form = ARGV[p], ARGV[p + 1]
  local base, at = now, due_now
  local last = tonumber(redis.call('HGET', KEYS[k + 3], 'last') or 0)
  if last and last >= base and form == 'a' then
    base = last + 1
    at = b7(base)
  end
  if not last or redis.call('HSETNX', KEYS[k + 1], id, form .. at .. ARGV[p + 2]) == 0 then
    answer[i] = 'x'
  else
    answer[i] = '0'
    if form == 'a' then redis.call('HSET', KEYS[k + 3], 'last', string.format('%.0f', base)) end
    if redis.call('RPUSH', KEYS[k + 2], id) == 1 then redis.call('PUBLISH', ARGV[p + 3], '0') end
  end
end
return table.concat(answer)
