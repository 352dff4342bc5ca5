-- Included by claim.lua and resume.lua: put what was in flight under an earlier claim back, and
-- judge it. Expects their KEYS, and `claim`.
--#include record
--#include sound
--#include spill
--#include measure
--#include morgue
--#include recover
--#include enqueue
--#include journal
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max_crashes = tonumber(claim.max_crashes or 0)
local buried, alone, died = 0, false, ''

-- When the one flight was popped, and what was noted of its id: that goes with the flight.
local popped, noted = now, ''
local function see_flight()
  for field, value in pairs(claim) do
    if string.byte(field, 1) == 64 then popped = math.min(popped, tonumber(value) or now) end
  end
  if redis.call('LLEN', KEY.flight) == 1 then noted = journal_log(redis.call('LINDEX', KEY.flight, 0), popped) end
end

-- note_crash writes what is known of a run that ended with its worker.
local function note_crash(id, record)
  local job, why = parse(record), 'its worker died while it ran alone'
  journal(noted .. string.format('c %d %.0f %.0f -1 -1 ', job.retry, job.since or job.at, popped - (job.since or job.at)) .. #id .. ' ' .. #why .. ' 0 0\n' .. id .. why, 1)
end

-- judge puts an id in quarantine, or counts a crash that no other id can have caused. It says
-- whether it was the last: then its payloads are buried.
local function judge(id, record)
  local crashes = redis.call('HGET', KEY.crashes, id)
  if crashes and alone then
    crashes = redis.call('HINCRBY', KEY.crashes, id, 1)
    note_crash(id, record)
    if max_crashes > 0 and crashes >= max_crashes and readable(redis.call('HGET', KEY.morgue, id)) then
      local dead = parse(record)
      entomb(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, id, dead, dead.retry,
        'crash: its worker died ' .. crashes .. ' times while it ran alone', now)
      buried = buried + dead.n
      redis.call('HDEL', KEY.crashes, id)
      redis.call('HDEL', KEY.jobs, id)
      local parked = redis.call('HGET', KEY.parked, id)
      if parked and readable(parked) then unpark(KEY.jobs, KEY.ready, KEY.due, KEY.parked, id, parked, now) end
      return true
    end
  elseif not crashes then
    redis.call('HSET', KEY.crashes, id, 0)
  end
end

-- take_back takes a part of the flights back and returns how many jobs that were, and how many ids
-- are left. from: the instance that had them.
local function take_back(cause, from)
  open_journal()
  if cause == 'seize' and not claim.recover then see_flight() end
  local cause, n = recovery(cause)
  if not cause then return 0, 0 end
  alone, died = n == 1, from
  local count, left = recover(cause == 'seize' and judge or nil)
  close_journal(died, now)
  return count, left
end
