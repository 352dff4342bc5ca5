-- Included after lib/urgent.lua by scripts that end flights: where an id waits next. pop_each.lua serves no shard with
-- urgent ids, and sets urging to false instead.

-- enqueue puts an id into the line if it is due, else into the list of scheduled ids.
local function enqueue(ready_key, due_key, id, at, now)
  if at > now then
    redis.call('ZADD', due_key, string.format('%.0f', at), id)
  elseif not (urging and seat(id, at)) then
    redis.call('RPUSH', ready_key, id)
  end
end

-- unpark makes the payloads that were pushed during an id's flight a job of their own. Their record has form j or s, and
-- its own due time. A damaged record stays parked, for a repair.
local function unpark(jobs_key, ready_key, due_key, parked_key, id, record, now)
  local at = tonumber(string.match(record, '^.%S+ (%d+)'))
  if not at then
    if urging then cease(id) end
    return
  end
  redis.call('HDEL', parked_key, id)
  redis.call('HSET', jobs_key, id, record)
  if urging then outlast(id) end
  enqueue(ready_key, due_key, id, at, now)
end
