-- Included by scripts that put ids into the line of a shard, or end jobs: urgent ids. Expects KEY.urgent, KEY.stale,
-- KEY.jobs, KEY.count.
--
-- The line of a shard is KEY.urgent and then KEY.ready. KEY.urgent is a sorted set of all urgent ids:
--   score 0 or more  the id is due, since that time (us); the ids of one push are 1 us apart
--   score -1         the id is in flight, or waits elsewhere, for its time or for a person
--   score -2         the id is in flight, and was pushed urgently, or has more payloads, since its pop
-- If a due id becomes urgent, its entry in KEY.ready stays, because finding it would take time in proportion to the
-- list. KEY.stale has the id until a pop passes over the entry. No id leaves two entries: while it has a job, the mark
-- is there; if the job ends first, the entry becomes a tombstone.
local urging = redis.call('EXISTS', KEY.urgent) == 1

-- in_line reports whether an id is an urgent id that is due.
local function in_line(id)
  local score = redis.call('ZSCORE', KEY.urgent, id)
  return score and score + 0 >= 0
end

-- seat gives a due id its place unless that is an end of ready. The place of an urgent id is in KEY.urgent. The place of
-- another id is the entry that it has left in ready. seat reports whether there is such a place.
local function seat(id, at)
  if redis.call('ZSCORE', KEY.urgent, id) then
    redis.call('ZADD', KEY.urgent, string.format('%.0f', at), id)
    return true
  end
  return redis.call('HDEL', KEY.stale, id) == 1
end

-- outlast ends the urgency of an id after its flight, unless it was pushed urgently during the flight.
local function outlast(id)
  local score = redis.call('ZSCORE', KEY.urgent, id)
  if score and score + 0 ~= -2 then redis.call('ZREM', KEY.urgent, id) end
end

-- cease ends the urgency of an id whose job has ended.
local function cease(id)
  redis.call('ZREM', KEY.urgent, id)
  if redis.call('HDEL', KEY.stale, id) == 1 then
    redis.call('HSET', KEY.jobs, id, 'x')
    redis.call('HINCRBY', KEY.count, 'tombs', 1)
  end
end
