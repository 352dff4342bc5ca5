-- complete: the ids named are done, and there is more to say: results to who called, states of ids, lines of the journal;
-- or their progress is noted, and ends.
--
--#keys claim jobs ready due flight parked crashes count states statesx reply
--#keys progress journal journalx
-- ARGV  1 instance  2 fence  3 channel that wakes the owner  4 how long a state is kept after its last write, us
--       (0: for ever)  5 bounds of the journal, see lib/journal.lua  6 arguments of acks that follow, as in ack.lua  then these
--       then how many blocks of the journal follow  then per block: flight, how many runs, first id, last id, lines
--       then per id with more to say: flight, id, reply ('' nobody called, else lib/tell.lua), state ('' as it was,
--       '-' none, '=' and the bytes)
--       An ack of flight '#2' and count 0 is of the ids of the second block, which were popped one after the other. The lines
--       of other blocks are of ids that are named.
-- Returns the number of ids that were in their flight until now. What is to be said of the others is not said:
-- an ack that is late or repeated changes nothing, so a state is replaced once per ack (I6).
-- Errors: FENCED holder fence
--#include claimed
--#include take_out
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

-- ended are the ids that were in their flight until now, by flight: finish takes them out by these two. written are
-- the blocks of which all had been.
local ended, written = {}, {}
do
  local some, all = take_out, take_out_all

  -- in_row takes the ids of a block out at once: they are the next of their flight, as batches mostly end in its order. Between
  -- the first and the last one no others were popped. It says whether it did; else they are taken out by name.
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

-- Who called stands in the payloads, which go with the ack.
local records = {}
for p = answers, #ARGV, 4 do
  if ARGV[p + 2] ~= '' then records[ARGV[p + 1]] = redis.call('HGET', KEY.jobs, ARGV[p + 1]) end
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
for p = answers, #ARGV, 4 do
  local number, id, reply, state = ARGV[p], ARGV[p + 1], ARGV[p + 2], ARGV[p + 3]
  if ended[number] and ended[number][id] then
    ended[number][id] = nil
    local sound, job = pcall(parse, records[id] or '')
    if sound then tell(job.data, reply) end
    keep(id, state, string.format('%.0f', now))
    redis.call('HDEL', KEY.progress, id)
  end
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
