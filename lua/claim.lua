-- claim: become the owner of a shard.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx
--       10 late  11 morgue  12 dead  13 count  14 due  15 attempts
-- ARGV  1 instance  2 cause: fresh, self or seize  3 fence as read before ('0' if none)
--       4 holder as read before ('' if none)
-- Returns {'OK', fence, jobs that were in flight, payloads buried as crashes, ids still to be taken out of
--         flights: see resume.lua}
--         {'STALE', holder, fence}  the claim has changed since it was read: nothing happens
--         {'HELD', holder, fence}   cause fresh, and somebody holds it
--         {'REMOVED', mark, fence}  the queue is deleted: see remove_shard.lua
-- Keeps I1 (one holder, a fence that grows for ever, even if Redis lost the counter) and I2.
--
-- Only a seizure puts ids on probation: their last owner died while it had them. An id on
-- probation that a seizure finds alone in flight gets one more crash; at max_crashes (stored
-- by the pop) it is buried, so a poisonous payload cannot kill node after node.
local claim = {}
do
  local flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
local holder, fence = claim.instance or '', claim.fence or '0'
if fence ~= ARGV[3] or holder ~= ARGV[4] then return {'STALE', holder, fence} end
if holder ~= '' and ARGV[2] == 'fresh' then return {'HELD', holder, fence} end
local mark = redis.call('HGET', KEYS[13], 'last') or 0
if not tonumber(mark) then return {'REMOVED', 'REMOVED ' .. mark, fence} end

--#include judge
local count, left = take_back(ARGV[2], holder)
local next_fence = math.max(tonumber(fence) + 1, math.floor(now / 1000))
next_fence = string.format('%.0f', next_fence)

-- A small hash is a list inside Redis, searched from end to end: in a shard with 400 jobs that
-- costs more than all the rest of a pop. A field longer than any list takes makes it a table.
-- No id is empty, so '' is free.
redis.call('HSET', KEYS[2], '', string.rep('hashtable', 20))
redis.call('HSET', KEYS[1], 'instance', ARGV[1], 'fence', next_fence, 'pop', 0)
return {'OK', next_fence, count, buried, left}
