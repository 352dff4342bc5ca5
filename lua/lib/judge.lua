-- Included by claim.lua and resume.lua: puts the jobs in flight of an earlier claim back, and judges
-- them after a crash. Expects their KEYS, and `claim`.
--#include record
--#include sound
--#include spill
--#include measure
--#include morgue
--#include urgent
--#include recover
--#include enqueue
--#include journal
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--#include gone
local max_crashes = tonumber(claim.max_crashes or 0)
local buried, alone, died = 0, false, ''

-- see_flight keeps the time of the earliest pop and, if a single id is in flight, its journal lines.
-- The recovery deletes both, so see_flight runs before it.
local popped, noted = now, ''
local function see_flight()
  for field, value in pairs(claim) do
    if string.byte(field, 1) == 64 then popped = math.min(popped, tonumber(value) or now) end
  end
  if redis.call('LLEN', KEY.flight) == 1 then noted = journal_log(redis.call('LINDEX', KEY.flight, 0), popped) end
end

-- note_crash writes a line about a run that ended with its worker into the journal.
local function note_crash(id, record)
  local job, why = parse(record), 'its worker died while it ran alone'
  journal(noted .. string.format('c %d %.0f %.0f -1 -1 ', job.retry, job.since or job.at, popped - (job.since or job.at)) .. #id .. ' ' .. #why .. ' 0 0\n' .. id .. why, 1)
end

-- judge puts an id in quarantine. If a quarantined id was alone in flight, no other id can have caused
-- the crash, so judge counts it. At max_crashes it buries the payloads of the id. judge returns true if
-- it has buried them.
local function judge(id, record)
  local crashes = redis.call('HGET', KEY.crashes, id)
  if crashes and alone then
    crashes = redis.call('HINCRBY', KEY.crashes, id, 1)
    note_crash(id, record)
    if max_crashes > 0 and crashes >= max_crashes and readable(redis.call('HGET', KEY.morgue, id)) then
      local dead = parse(record)
      bury_payloads(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, id, dead, dead.retry,
        'crash: its worker died ' .. crashes .. ' times while it ran alone', now)
      buried = buried + dead.n
      redis.call('HDEL', KEY.crashes, id)
      gone(id)
      return true
    end
  elseif not crashes then
    redis.call('HSET', KEY.crashes, id, 0)
  end
end

-- take_back puts a part of the flights back. It returns the number of jobs that it handled, and the
-- number of ids that are left. from is the instance that had the flights.
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
