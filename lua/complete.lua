-- complete: the ids named are done, and there is more to say: results to who called, states of ids; or their progress is
-- noted, and ends.
--
--#keys claim jobs ready due flight parked crashes count states statesx reply
--#keys progress
-- ARGV  1 instance  2 fence  3 channel that wakes the owner  4 how long a state is kept after its last write, us
--       (0: for ever)  5 arguments of acks that follow, as in ack.lua  then these
--       then per id of theirs with more to say: flight, id, reply ('' nobody called, else lib/tell.lua), state ('' as it was,
--       '-' none, '=' and the bytes)
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

-- ended are the ids that were in their flight until now, by flight: finish takes them out by these two.
local ended = {}
do
  local some, all = take_out, take_out_all
  local function note(number, ids)
    ended[number] = ended[number] or {}
    for i = 1, #ids do ended[number][ids[i]] = true end
    return ids
  end
  take_out = function(flight_key, crashes_key, number, ids) return note(number, some(flight_key, crashes_key, number, ids)) end
  take_out_all = function(flight_key, crashes_key, number) return note(number, all(flight_key, crashes_key, number)) end
end

-- Who called stands in the payloads, which go with the ack.
local acks, records = 5 + tonumber(ARGV[5]), {}
for p = acks + 1, #ARGV, 4 do
  if ARGV[p + 2] ~= '' then records[ARGV[p + 1]] = redis.call('HGET', KEY.jobs, ARGV[p + 1]) end
end
local done, again = finish(KEY.jobs, KEY.ready, KEY.due, KEY.flight, KEY.parked, KEY.crashes, KEY.count, 6, acks)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for p = acks + 1, #ARGV, 4 do
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
