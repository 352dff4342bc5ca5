-- claim: become the owner of a shard.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due retry
--#keys journal journalx reply progress urgent stale coming out
-- ARGV  1 instance  2 cause: fresh, self or seize  3 the fence that the caller has read ('0' if none)
--       4 the holder that the caller has read ('' if none)
--       5 the queue that gets dead payloads by the rule `then` ('' if none). A process that does not know the rule
--       leaves it out, and the field stays
-- Returns {'OK', fence, recovered jobs, payloads buried as crashes, ids that are still in flights (see
--         resume.lua), held ids (see held.lua), the rule of groups (see regroup.lua), 1 if follow-ups wait}
--         {'STALE', holder, fence}  the claim has changed since the caller read it; nothing happens
--         {'HELD', holder, fence}   the cause is fresh, and another instance holds the shard
--         {'REMOVED', mark, fence}  the shard is out of use; see freeze.lua
--         {'CLOSED', '', fence}     jobs of a former layout still come to the shard; see take.lua
-- Keeps I1 (a shard has one holder, and its fence always rises, even if Redis lost it) and I2.
--
-- The new fence is at least Redis's clock in milliseconds. So it is above all earlier fences also after
-- Redis has lost the claim.
--
-- A seizure puts the ids in flight in quarantine, because their owner died while it handled them. If a
-- seizure finds a quarantined id alone in flight, the id gets one more crash. At max_crashes, which
-- the pop has stored, the id is buried. So a payload that kills its process cannot kill node after node.
local claim = {}
do
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
local holder, fence = claim.instance or '', claim.fence or '0'
if fence ~= ARGV[3] or holder ~= ARGV[4] then return {'STALE', holder, fence} end
if holder ~= '' and ARGV[2] == 'fresh' then return {'HELD', holder, fence} end
local mark = redis.call('HGET', KEY.count, 'last') or 0
if not tonumber(mark) then return {'REMOVED', 'REMOVED ' .. mark, fence} end
if redis.call('EXISTS', KEY.coming) == 1 then return {'CLOSED', '', fence} end

--#include judge
--#include held
-- tell reads this field. take_back below may bury payloads, so the claim stores the field before it.
if ARGV[5] and ARGV[5] ~= (redis.call('HGET', KEY.count, 'then') or '') then
  redis.call('HDEL', KEY.count, 'then') -- the first write needs no memory: see lease.lua
  if ARGV[5] ~= '' then redis.call('HSET', KEY.count, 'then', ARGV[5]) end
end
local count, left = take_back(ARGV[2], holder)
local next_fence = math.max(tonumber(fence) + 1, math.floor(now / 1000))
next_fence = string.format('%.0f', next_fence)

-- Redis keeps a small hash as a list and searches it from end to end. In a shard with 400 jobs that
-- costs more than the rest of a pop. A long field makes it a hash table. No id is empty, so the
-- field '' is free.
redis.call('HSET', KEY.jobs, '', string.rep('hashtable', 20))
redis.call('HSET', KEY.claim, 'instance', ARGV[1], 'fence', next_fence, 'pop', 0)
local held = redis.call('ZCOUNT', KEY.due, held_at, '+inf') + redis.call('ZCOUNT', KEY.retry, held_at, '+inf')
local groups = redis.call('HGET', KEY.count, 'groups') or redis.call('EXISTS', KEY.postponed) == 1 and '?' or ''
return {'OK', next_fence, count, buried, left, held, groups, redis.call('EXISTS', KEY.out)}
