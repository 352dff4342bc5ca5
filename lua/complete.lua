-- complete: acknowledge ids, as ack does, and store the rest of their answers: replies for callers, states
-- of ids, follow-ups, lines of the journal. It also ends the noted progress of the ids that have such an answer.
--
--#keys claim jobs ready due flight parked crashes count states statesx reply urgent stale
--#keys progress journal journalx out
-- ARGV  1 instance  2 fence  3 channel that wakes the owner  4 time (us) that a state is kept after its
--       last write (0: for ever)  5 bounds of the journal, see lib/journal.lua  6 number of the arguments
--       of acks, then these arguments as in ack.lua
--       then the number of blocks of the journal, then per block: flight, number of runs, first id, last
--       id, lines
--       then per id with a reply, a state, follow-ups or noted progress: flight, id, reply ('' without callers,
--       else see lib/tell.lua), state ('' keeps it, '-' deletes it, '=' and its bytes), number of follow-ups,
--       then per follow-up: queue, id, payload as its queue stores it, score, due time (lib/send_on.lua)
--       An ack of flight '#2' with count 0 acknowledges the ids of the second block, which one pop took
--       in a row. The ids of other blocks are named by acks.
-- Returns the number of ids that were in their flight until now. For other ids the script stores nothing.
-- So a late or repeated ack changes nothing, and an ack replaces a state once (I6).
-- Errors: FENCED holder fence
--#include claimed
--#include take_out
--#include urgent
--#include enqueue
--#include finish
--#include record
--#include tell
--#include keep
--#include journal
--#include each_run

local acks = 6 + tonumber(ARGV[6])
local answers = acks + 2 + 5 * tonumber(ARGV[acks + 1])
local more, journals = answers <= #ARGV, answers > acks + 2

-- finish calls take_out and take_out_all, which are replaced here. The new functions record in ended, by
-- flight, the ids that were in their flight until now. They record in written the blocks that in_row took as
-- a whole.
local ended, written = {}, {}
do
  local some, all = take_out, take_out_all

  -- in_row takes the ids of a block out with one LPOP if they are the first ids of the flight list. Mostly
  -- they are, because batches mostly end in the order of their flight. The ids came one after the other in
  -- their pop. If one of them had left the flight, the last id would not be n - 1 places behind the first.
  -- So a look at these two suffices, and in_row takes no other id (I1). Otherwise it returns nil, and the
  -- caller takes the ids out by name.
  local function in_row(flight_key, crashes_key, number, n, first, last)
    local before, size = stretch(number)
    if before > 0 or size < n or redis.call('LINDEX', flight_key, 0) ~= first or redis.call('LINDEX', flight_key, n - 1) ~= last then return nil end
    local ids = redis.call('LPOP', flight_key, n)
    shrink(number, size - n)
    if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(ids)) end
    return ids
  end

  local function note(number, ids, whole)
    if more or not whole then
      ended[number] = ended[number] or {}
      for i = 1, #ids do ended[number][ids[i]] = true end
    end
    return ids
  end

  take_out = function(flight_key, crashes_key, number, ids)
    return note(number, some(flight_key, crashes_key, number, ids), false)
  end
  take_out_all = function(flight_key, crashes_key, number)
    if string.byte(number, 1) ~= 35 then return note(number, all(flight_key, crashes_key, number), false) end
    local p = acks + 2 + 5 * (tonumber(string.sub(number, 2)) - 1)
    local ids = in_row(flight_key, crashes_key, ARGV[p], tonumber(ARGV[p + 1]), ARGV[p + 2], ARGV[p + 3])
    if ids then
      written[p] = true
      return note(ARGV[p], ids, true)
    end
    ids = {}
    each_run(ARGV[p + 4], function(id) ids[#ids + 1] = id end)
    return note(ARGV[p], some(flight_key, crashes_key, ARGV[p], ids), false)
  end
end

-- The payloads name their callers. The script reads them before the ack, which deletes them.
local records = {}
local q = answers
while q <= #ARGV do
  if ARGV[q + 2] ~= '' then records[ARGV[q + 1]] = redis.call('HGET', KEY.jobs, ARGV[q + 1]) end
  q = q + 5 + 5 * tonumber(ARGV[q + 4])
end
if journals then open_journal() end
local popped = {}
for p = acks + 2, answers - 1, 5 do popped[ARGV[p]] = claim['@' .. ARGV[p]] end
local done, again = finish(KEY.jobs, KEY.ready, KEY.due, KEY.flight, KEY.parked, KEY.crashes, KEY.count, 7, acks)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if journals then
  local noted = redis.call('EXISTS', KEY.progress) == 1
  for p = acks + 2, answers - 1, 5 do
    local number, block = ARGV[p], ARGV[p + 4]
    if written[p] and not noted then
      journal(block, tonumber(ARGV[p + 1]))
    else
      each_run(block, function(id, _, line)
        if written[p] or ended[number] and ended[number][id] == true then
          if not written[p] then ended[number][id] = 'written' end
          journal((noted and journal_log(id, popped[number]) or '') .. line, 1)
        end
      end)
    end
  end
  close_journal(ARGV[1], now, ARGV[5])
end
q = answers
while q <= #ARGV do
  local number, id, reply, state, follow_ups = ARGV[q], ARGV[q + 1], ARGV[q + 2], ARGV[q + 3], tonumber(ARGV[q + 4])
  if ended[number] and ended[number][id] then
    ended[number][id] = nil
    local sound, job = pcall(parse, records[id] or '')
    if sound then tell(job.data, reply, id) end
    keep(id, state, string.format('%.0f', now))
    redis.call('HDEL', KEY.progress, id)
    for p = q + 5, q + 5 * follow_ups, 5 do send_on(ARGV[p], ARGV[p + 1], ARGV[p + 2], ARGV[p + 3], ARGV[p + 4], '') end
  end
  q = q + 5 + 5 * follow_ups
end
local kept = tonumber(ARGV[4])
if kept > 0 then
  local old = redis.call('ZRANGEBYSCORE', KEY.statesx, '-inf', string.format('%.0f', now - kept), 'LIMIT', 0, 100)
  if #old > 0 then
    redis.call('ZREM', KEY.statesx, unpack(old))
    redis.call('HDEL', KEY.states, unpack(old))
  end
end
if again > 0 then redis.call('PUBLISH', ARGV[3], '0') end
return done
