-- remove_shard: delete a shard of a queue, step by step; see queue/remove/remove.go.
--
--#keys claim count jobs ready due retry blocked stale flight parked suspects crashes morgue dead
--#keys spill spillx aside journal journalx late states statesx progress from since postponed urgent
-- ARGV  1 step: mark, remove or restore  2 the deletion's token  3 mark: '1' whatever the shard holds
-- Returns {'OK', ids that are not done, payloads in the morgue, records set aside, states of ids}
--         {'HELD', holder}   mark: an instance owns the shard; nothing was done
--         {'FILLED', ids, payloads, records, states}  mark: the shard is not empty; nothing was done
--         {'STALE'}  remove: the shard does not have the mark of this deletion, which was cancelled; nothing
--         was done
-- The mark is field last of count, "removed <token> <last>". Pushes (push.lua, push_each.lua) and claims
-- (claim.lua) read that field, and refuse. The mark stays after all other keys are gone. So no process that
-- knew the queue stores a job where no node looks (I2). Each step may be repeated. A single UNLINK deletes
-- the keys, and takes as long for a million jobs as for one, because Redis frees them in the background.
local step, token = ARGV[1], ARGV[2]
redis.call('HDEL', KEY.claim, '') -- the first write needs no memory: see lease.lua
local last = redis.call('HGET', KEY.count, 'last') or ''
local mark, before = string.match(last, '^removed (%S+) (%d+)')

local function have()
  local count = redis.call('HMGET', KEY.count, 'tombs', 'morgue')
  local ids = redis.call('HLEN', KEY.jobs) - redis.call('HEXISTS', KEY.jobs, '') - (tonumber(count[1]) or 0) -- '': see claim.lua
  return math.max(0, ids), tonumber(count[2]) or 0, redis.call('HLEN', KEY.aside), redis.call('HLEN', KEY.states)
end

-- empty does not rely on the counters alone, because a wrong counter must not cost a job.
local function empty(ids)
  if ids > 0 then return false end
  return redis.call('EXISTS', KEY.due, KEY.retry, KEY.blocked, KEY.flight, KEY.parked, KEY.suspects, KEY.morgue, KEY.dead, KEY.spill, KEY.aside, KEY.states) == 0
end

if step == 'restore' then
  if mark == token then
    if before == '0' then redis.call('HDEL', KEY.count, 'last') else redis.call('HSET', KEY.count, 'last', before) end
  end
  return {'OK', 0, 0, 0, 0}
end
local ids, dead, aside, states = have()
if step == 'remove' then
  if mark ~= token then return {'STALE'} end
  redis.call('UNLINK', unpack(KEYS, 3))
  redis.call('DEL', KEY.claim, KEY.count)
  redis.call('HSET', KEY.count, 'last', last)
  return {'OK', ids, dead, aside, states}
end
if mark == token then return {'OK', ids, dead, aside, states} end
local holder = redis.call('HGET', KEY.claim, 'instance')
if holder then return {'HELD', holder} end
if ARGV[3] ~= '1' and not empty(ids) then return {'FILLED', ids, dead, aside, states} end
redis.call('HSET', KEY.count, 'last', 'removed ' .. token .. ' ' .. (before or tonumber(last) and last or '0'))
return {'OK', ids, dead, aside, states}
