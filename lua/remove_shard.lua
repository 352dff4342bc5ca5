-- remove_shard: one shard of a queue that is being deleted, step by step; see queue/remove.go.
--
-- KEYS  1 claim  2 count  3 jobs  4 ready  5 due  6 retry  7 blocked  8 stale  9 flight  10 parked  11 suspects  12 crashes
--       13 morgue  14 dead  15 spill  16 spillx  17 aside  18 attempts  19 late
-- ARGV  1 step: mark, remove or restore  2 the deletion's token  3 mark: '1' whatever the shard holds
-- Returns {'OK', ids that are not done, payloads in the morgue, records set aside}
--         {'HELD', holder}   mark: somebody owns the shard; nothing was done
--         {'FILLED', ids, payloads, records}  mark: it holds something; nothing was done
--         {'STALE'}  remove: the shard has not the mark of this deletion, which was given up; nothing was done
-- The mark is field last of count, "removed <token> <last>": a push (push.lua, push_each.lua) and a claim (claim.lua)
-- read that field, and refuse. It stays when all else is gone, so that nobody who knew the queue stores a job where no
-- node looks (I2). Each step may be repeated.
-- All is let go by one UNLINK, which takes as long for a million jobs as for one: Redis frees them beside its work.
local step, token = ARGV[1], ARGV[2]
redis.call('HDEL', KEYS[1], '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua
local last = redis.call('HGET', KEYS[2], 'last') or ''
local mark, before = string.match(last, '^removed (%S+) (%d+)')

local function have()
  local count = redis.call('HMGET', KEYS[2], 'tombs', 'morgue')
  local ids = redis.call('HLEN', KEYS[3]) - redis.call('HEXISTS', KEYS[3], '') - (tonumber(count[1]) or 0) -- '': see claim.lua
  return math.max(0, ids), tonumber(count[2]) or 0, redis.call('HLEN', KEYS[17])
end

-- empty does not believe the counters alone: a wrong one must not cost a job.
local function empty(ids)
  if ids > 0 then return false end
  return redis.call('EXISTS', KEYS[5], KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11], KEYS[13], KEYS[14], KEYS[15], KEYS[17]) == 0
end

if step == 'restore' then
  if mark == token then
    if before == '0' then redis.call('HDEL', KEYS[2], 'last') else redis.call('HSET', KEYS[2], 'last', before) end
  end
  return {'OK', 0, 0, 0}
end
local ids, dead, aside = have()
if step == 'remove' then
  if mark ~= token then return {'STALE'} end
  redis.call('UNLINK', unpack(KEYS, 3))
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[2], 'last', last)
  return {'OK', ids, dead, aside}
end
if mark == token then return {'OK', ids, dead, aside} end
local holder = redis.call('HGET', KEYS[1], 'instance')
if holder then return {'HELD', holder} end
if ARGV[3] ~= '1' and not empty(ids) then return {'FILLED', ids, dead, aside} end
redis.call('HSET', KEYS[2], 'last', 'removed ' .. token .. ' ' .. (before or tonumber(last) and last or '0'))
return {'OK', ids, dead, aside}
