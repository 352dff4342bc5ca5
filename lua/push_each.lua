-- push_each: store new jobs in many shards, a few in each, in one call. Redis takes longer to start a
-- script than to store a job, and callers that push one by one would pay that for each shard. A Redis
-- Cluster cannot run it, because the shards are in different slots.
--
-- KEYS  per job: the prefix of the keys of its shard. To name each key would cost more than the job.
-- ARGV  per job: id, form (a or e), tail; form and tail as in push.lua
-- Returns one character per job: 0 stored; x the id is not new, or the queue is deleted. For x nothing was
--         done, and the caller sends the job to push.lua.
-- Keeps I2 and I3 as push.lua does. Shards are independent: each job is a step of its own.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {}

--#include micros

local due_now = b7(now)
for i, tag in ipairs(KEYS) do
  local id, form, tail = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local base, at, count_key = now, due_now, tag .. 'count'
  local last = tonumber(redis.call('HGET', count_key, 'last') or 0)
  if last and last >= base and form == 'a' then
    base = last + 1
    at = b7(base)
  end
  if not last or redis.call('HSETNX', tag .. 'jobs', id, form .. at .. tail) == 0 then
    answer[i] = 'x'
  else
    answer[i] = '0'
    if form == 'a' then redis.call('HSET', count_key, 'last', string.format('%.0f', base)) end
    if redis.call('RPUSH', tag .. 'ready', id) == 1 then redis.call('PUBLISH', tag .. 'wake', '0') end
  end
end
return table.concat(answer)
