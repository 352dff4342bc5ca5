-- Included by claim.lua and resume.lua: put what was in flight under an earlier claim back, and judge it.
-- Expects their KEYS, and `claim`.
--#include record
--#include sound
--#include spill
--#include measure
--#include morgue
--#include recover
--#include enqueue
--#include attempt
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max_crashes = tonumber(claim.max_crashes or 0)
local buried, alone, died = 0, false, ''

-- judge puts an id on probation, or counts a crash that nobody else can have caused. It says whether it was
-- the last: then its payloads are buried.
local function judge(id, record)
  local crashes = redis.call('HGET', KEYS[6], id)
  if crashes and alone then
    crashes = redis.call('HINCRBY', KEYS[6], id, 1)
    local retry = (string.byte(record, 1) == 106 or string.byte(record, 1) == 112) and head_of(record).retry or -1
    attempt(now, id, retry, 'crashed', died, 'its worker died while it ran alone')
    if max_crashes > 0 and crashes >= max_crashes and readable(redis.call('HGET', KEYS[11], id)) then
      local dead = parse(record)
      entomb(KEYS[11], KEYS[12], KEYS[13], KEYS[8], KEYS[9], id, dead, dead.retry,
        'crash: its worker died ' .. crashes .. ' times while it ran alone', now)
      buried = buried + dead.n
      redis.call('HDEL', KEYS[6], id)
      redis.call('HDEL', KEYS[2], id)
      local parked = redis.call('HGET', KEYS[5], id)
      if parked and readable(parked) then unpark(KEYS[2], KEYS[3], KEYS[14], KEYS[5], id, parked, now) end
      return true
    end
  elseif not crashes then
    redis.call('HSET', KEYS[6], id, 0)
  end
end

-- take_back takes a part of the flights back and returns how many jobs that were, and how many ids are left.
-- from: the instance that had them.
local function take_back(cause, from)
  local cause, n = recovery(cause)
  if not cause then return 0, 0 end
  alone, died = n == 1, from
  local count, left = recover(cause == 'seize' and judge or nil)
  note_attempts(KEYS[15])
  return count, left
end
