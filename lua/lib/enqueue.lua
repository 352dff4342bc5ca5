-- Included by scripts that end flights: where an id waits next.

-- enqueue makes an id wait for its due time, or at once.
local function enqueue(ready_key, due_key, id, at, now)
  if at <= now then
    redis.call('RPUSH', ready_key, id)
  else
    redis.call('ZADD', due_key, string.format('%.0f', at), id)
  end
end

-- unpark lets what was pushed during an id's flight wait by itself. Such a record has form j or s and is fresh, and
-- waits since its own time; a damaged one stays where it is, for a repair.
local function unpark(jobs_key, ready_key, due_key, parked_key, id, record, now)
  local at = string.match(record, '^.%S+ (%d+)')
  if not at then return end
  redis.call('HDEL', parked_key, id)
  redis.call('HSET', jobs_key, id, record)
  enqueue(ready_key, due_key, id, tonumber(at), now)
end
