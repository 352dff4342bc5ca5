-- Included by scripts that end flights: where an id waits next.

-- enqueue puts an id into the ready list if it is due, else into the list of scheduled ids.
local function enqueue(ready_key, due_key, id, at, now)
  if at <= now then
    redis.call('RPUSH', ready_key, id)
  else
    redis.call('ZADD', due_key, string.format('%.0f', at), id)
  end
end

-- unpark makes the payloads that were pushed during an id's flight a job of their own. Their record has
-- form j or s, and its own due time. A damaged record stays parked, for a repair.
local function unpark(jobs_key, ready_key, due_key, parked_key, id, record, now)
  local at = string.match(record, '^.%S+ (%d+)')
  if not at then return end
  redis.call('HDEL', parked_key, id)
  redis.call('HSET', jobs_key, id, record)
  enqueue(ready_key, due_key, id, tonumber(at), now)
end
