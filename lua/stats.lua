-- stats: the figures of a shard. Reads only.
--
--#keys jobs ready due retry blocked flight suspects count dead claim stale parked late postponed urgent coming out
-- Returns {now us, ready, scheduled, retry, in flight, blocked, ids in the morgue, payloads in the
--         morgue, processed, failed, the time (us) since which the longest waiting job waits or '', holder, fence,
--         failed ids in ready, lines left out of the journal, held, follow-ups that wait to be delivered, the number of
--         the first of them, which is nearly the time (us) since which it waits, or '', the first id of the oldest flight,
--         the times (us) of the oldest and the newest flight, each '' if no job waits or none is in flight}
-- The longest waiting job is the first of the ready list or of the urgent ids, a job that became due since
-- the last pop, a postponed job, a job that was pushed to an id in flight, or a job that still comes from a former
-- layout (take.lua). The ready list is in order of due times, with three exceptions: a push with a due time in the
-- past, a push during a flight that has ended, and an id that took the entry of an earlier job or of its own. So the
-- script takes the oldest of the first 16 jobs. Urgent ids are in order, except that ids of one push are 1 us apart.
--#include record
--#include sound
--#include held
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count = redis.call('HMGET', KEY.count, 'tombs', 'morgue', 'processed', 'failed', 'unlogged')
for i = 1, 5 do count[i] = tonumber(count[i] or 0) end
local left = redis.call('HLEN', KEY.stale)
local oldest

local function see(at)
  if at and at <= now and (not oldest or at < oldest) then oldest = at end
end

local function see_job(record)
  local job = head_if(record)
  if job then see(job.since or job.at) end
  return job
end

-- see_line looks at the first jobs of a list, and skips entries of deleted jobs. left is the number of obsolete entries
-- in the list. see_line asks for the length of a record first, so that 20,000 deleted entries cost 10 ms. Behind more of
-- them it continues in doubling steps.
local function see_line(key, left)
  local jobs, bytes, at, width, size = 0, 0, 0, 16, redis.call('LLEN', key)
  while at < size and jobs < 16 and bytes < 262144 do
    local ids = redis.call('LRANGE', key, at, at + width - 1)
    for i = 1, #ids do
      local length = redis.call('HSTRLEN', KEY.jobs, ids[i])
      if length > 1 and (left == 0 or redis.call('HEXISTS', KEY.stale, ids[i]) == 0) then
        bytes = bytes + length
        if bytes > 262144 and jobs > 0 then break end
        if see_job(redis.call('HGET', KEY.jobs, ids[i])) then jobs = jobs + 1 end
        if jobs == 16 then break end
      end
    end
    at, width = at + width, math.min(1000, 2 * width)
    if at >= 20000 then at, bytes = 2 * at, bytes + jobs * 262144 end
  end
  -- Many ids that took earlier entries may stand before older jobs. A look at few entries behind them
  -- finds the wait of those jobs, or nearly so.
  at = 16
  while jobs == 16 and at < size do
    local id = redis.call('LINDEX', key, at)
    if left == 0 or redis.call('HEXISTS', KEY.stale, id) == 0 then see_job(redis.call('HGET', KEY.jobs, id) or '') end
    at = at < size - 1 and math.min(size - 1, math.floor(at * 3 / 2)) or size
  end
end

-- see_parked looks at the parked payloads, whose records are small (see lib/spill.lua). If there are
-- more than 1,000, it takes the time of the oldest flight, because none was pushed before its flight
-- began.
local function see_parked()
  local parked = redis.call('HLEN', KEY.parked)
  if parked == 0 then return end
  if parked <= 1000 then
    local flat = redis.call('HGETALL', KEY.parked)
    for i = 2, #flat, 2 do see_job(flat[i]) end
    return
  end
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do
    if string.byte(flat[i], 1) == 64 then see(tonumber(flat[i + 1])) end
  end
end

see_line(KEY.ready, left)
see_line(KEY.suspects, 0) -- a stale id that is here has its obsolete entry in ready
local urgent = redis.call('ZRANGEBYSCORE', KEY.urgent, 0, '+inf', 'LIMIT', 0, 16)
for i = 1, #urgent do see_job(redis.call('HGET', KEY.jobs, urgent[i]) or '') end
see_parked()
see(tonumber(redis.call('HGET', KEY.coming, 'due') or nil))
for _, key in ipairs({KEY.due, KEY.retry, KEY.postponed}) do
  see(tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
end
local in_flight, first_id, first_popped, last_popped = redis.call('LLEN', KEY.flight), '', nil, nil
if oldest and in_flight > 0 then
  first_id = redis.call('LINDEX', KEY.flight, 0)
  local flat = redis.call('HGETALL', KEY.claim)
  for i = 1, #flat, 2 do
    local popped = string.byte(flat[i], 1) == 64 and tonumber(flat[i + 1])
    if popped then
      first_popped, last_popped = math.min(first_popped or popped, popped), math.max(last_popped or popped, popped)
    end
  end
end
local waits = redis.call('XLEN', KEY.out)
local first = waits > 0 and redis.call('XRANGE', KEY.out, '-', '+', 'COUNT', 1)[1]
local from = string.format('%.0f', held_at)
local held, held_failed = redis.call('ZCOUNT', KEY.due, from, '+inf'), redis.call('ZCOUNT', KEY.retry, from, '+inf')
local holder = redis.call('HMGET', KEY.claim, 'instance', 'fence')
return {string.format('%.0f', now),
  redis.call('LLEN', KEY.ready) + redis.call('LLEN', KEY.suspects) + redis.call('ZCOUNT', KEY.urgent, 0, '+inf') - count[1] - left,
  redis.call('ZCARD', KEY.due) - held, redis.call('ZCARD', KEY.retry) - held_failed, in_flight,
  redis.call('ZCARD', KEY.blocked), redis.call('ZCARD', KEY.dead), count[2], count[3], count[4],
  oldest and string.format('%.0f', oldest) or '', holder[1] or '', holder[2] or '0', redis.call('HLEN', KEY.late), count[5],
  held + held_failed, waits, first and string.match(first[1], '^%d+') or '',
  first_id, first_popped and string.format('%.0f', first_popped) or '', last_popped and string.format('%.0f', last_popped) or ''}
