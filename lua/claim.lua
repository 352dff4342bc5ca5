-- claim: become the owner of a shard.
--
--#keys claim jobs ready flight parked crashes suspects spill spillx late postponed morgue dead count due retry
--#keys journal journalx reply progress
-- ARGV  1 instance  2 cause: fresh, self or seize  3 fence as read before ('0' if none)
--       4 holder as read before ('' if none)
-- Returns {'OK', fence, jobs that were in flight, payloads buried as crashes, ids still to be taken out of
--         flights: see resume.lua, ids that are held: see held.lua, the rule of groups: see regroup.lua}
--         {'STALE', holder, fence}  the claim has changed since it was read: nothing happens
--         {'HELD', holder, fence}   cause fresh, and another instance holds it
--         {'REMOVED', mark, fence}  the queue is deleted: see remove_shard.lua
-- Keeps I1 (one holder, a fence that grows for ever, even if Redis lost the counter) and I2.
--
-- Only a seizure puts ids in quarantine: their last owner died while it had them. An id in
-- quarantine that a seizure finds alone in flight gets one more crash; at max_crashes (stored
-- by the pop) it is buried, so a poisonous payload cannot kill node after node.
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

--#include judge
--#include held
local count, left = take_back(ARGV[2], holder)
local next_fence = math.max(tonumber(fence) + 1, math.floor(now / 1000))
next_fence = string.format('%.0f', next_fence)

-- A small hash is a list inside Redis, searched from end to end: in a shard with 400 jobs that
-- costs more than all the rest of a pop. A field longer than any list takes makes it a table.
-- No id is empty, so '' is free.
redis.call('HSET', KEY.jobs, '', string.rep('hashtable', 20))
redis.call('HSET', KEY.claim, 'instance', ARGV[1], 'fence', next_fence, 'pop', 0)
local held = redis.call('ZCOUNT', KEY.due, held_at, '+inf') + redis.call('ZCOUNT', KEY.retry, held_at, '+inf')
local groups = redis.call('HGET', KEY.count, 'groups') or redis.call('EXISTS', KEY.postponed) == 1 and '?' or ''
return {'OK', next_fence, count, buried, left, held, groups}
