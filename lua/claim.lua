-- claim: become the owner of a shard.
--
-- KEYS  1 claim  2 jobs  3 ready  4 flight  5 parked  6 crashes  7 suspects  8 spill  9 spillx
--       10 morgue  11 dead  12 count  13 due  14 attempts
-- ARGV  1 instance  2 cause: fresh, self or seize  3 fence as read before ('0' if none)
--       4 holder as read before ('' if none)
-- Returns {'OK', fence, jobs that were in flight, payloads buried as crashes}
--         {'STALE', holder, fence}  the claim has changed since it was read: nothing happens
--         {'HELD', holder, fence}   cause fresh, and somebody holds it
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

--#include record
--#include sound
--#include spill
--#include morgue
--#include recover
--#include enqueue
--#include attempt

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max_crashes = tonumber(claim.max_crashes or 0)
local buried = 0

local function judge(job, in_all)
  local crashes = redis.call('HGET', KEYS[6], job.id)
  if crashes and in_all == 1 then
    crashes = redis.call('HINCRBY', KEYS[6], job.id, 1)
    local retry = string.byte(job.record, 1) == 106 and head_of(job.record).retry or -1
    attempt(now, job.id, retry, 'crashed', holder, 'its worker died while it ran alone')
    if max_crashes > 0 and crashes >= max_crashes and readable(redis.call('HGET', KEYS[10], job.id)) then
      local dead = parse(job.record)
      entomb(KEYS[10], KEYS[11], KEYS[12], KEYS[8], KEYS[9], job.id, dead.data, dead.score, dead.retry,
        'crash: its worker died ' .. crashes .. ' times while it ran alone', now)
      buried = buried + dead.n
      redis.call('HDEL', KEYS[6], job.id)
      redis.call('HDEL', KEYS[2], job.id)
      local parked = redis.call('HGET', KEYS[5], job.id)
      if parked and readable(parked) then unpark(KEYS[2], KEYS[3], KEYS[13], KEYS[5], job.id, parked, now) end
      return true
    end
  elseif not crashes then
    redis.call('HSET', KEYS[6], job.id, 0)
  end
end

local count = recover(ARGV[2] == 'seize' and judge or nil)
note_attempts(KEYS[14])
local next_fence = math.max(tonumber(fence) + 1, math.floor(now / 1000))
next_fence = string.format('%.0f', next_fence)

-- A small hash is a list inside Redis, searched from end to end: in a shard with 400 jobs that
-- costs more than all the rest of a pop. A field longer than any list takes makes it a table.
-- No id is empty, so '' is free.
redis.call('HSET', KEYS[2], '', string.rep('hashtable', 20))
redis.call('HSET', KEYS[1], 'instance', ARGV[1], 'fence', next_fence, 'pop', 0)
return {'OK', next_fence, count, buried}
