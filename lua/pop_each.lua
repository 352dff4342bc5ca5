-- pop_each: acknowledge done jobs in many shards and take the next flight of each, in one call. Redis takes
-- longer to start pop.lua than to pop a job, and a stream over many shards would pay that for each job. A
-- Redis Cluster cannot run it, because the shards are in different slots.
--
-- The script serves quiet shards. In a quiet shard due jobs wait only in the ready list, no id is crowded or
-- in quarantine or urgent, and no recovery runs. pop.lua and ack.lua serve the other shards.
--
-- KEYS  per shard: the prefix of its keys. To name 13 keys would cost more than the work on them.
-- ARGV  1 instance  2 maximum number of ids in all  3 maximum bytes of records in all
--       then per shard: fence, number of this pop (0 for acks alone), maximum number of ids, max_crashes,
--       number of arguments that follow, then acks as in ack.lua
-- Returns now in us, then per shard: for acks alone the answer of ack.lua; for a pop {open flights "n n …", due
--       time of the next scheduled or failed job or '', ids still ready, id, record, …}; or 'x'. After 'x' the
--       caller sends the same request to pop.lua or ack.lua. These repeat without harm what was done here, and
--       say why if the shard refuses.
-- Keeps I1 and I2 as pop.lua does: the script checks the fence of each shard, and each pop has its number.
-- Shards are independent: each is a step of its own, and none fails because of another.
local claim, claim_key
local urging, seat, outlast, cease = false, nil, nil, nil
--#include take_out
--#include enqueue
--#include finish

redis.call('HDEL', KEYS[1] .. 'claim', '') -- the first write needs no memory: see lease.lua
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
-- All shards together get at most as much as a pop of pop.lua. A record of form j has 32 payloads at most.
local instance, ids_left, bytes_left, payloads_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), 2000
local acks_left = 2000 -- ids of flights that acks may end or walk over

-- first_due returns when the next scheduled or failed job is due, nil if there is none.
local function first_due(due_key, retry_key)
  local first
  for _, key in ipairs({due_key, retry_key}) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if at and (not first or at < first) then first = at end
  end
  return first
end

-- read reads the whole claim, which finish and open_flights need.
local function read()
  claim = {}
  local flat = redis.call('HGETALL', claim_key)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end

local function open_flights()
  local open = {}
  for field in pairs(claim) do
    if string.byte(field, 1) == 35 then open[#open + 1] = string.sub(field, 2) end
  end
  return table.concat(open, ' ')
end

-- finish_only acknowledges the only open flight as a whole, which is the usual ack.
local function finish_only(jobs_key, flight_key, count_key, number, size)
  if size == 1 then
    redis.call('HDEL', jobs_key, redis.call('LPOP', flight_key))
  else
    redis.call('HDEL', jobs_key, unpack(redis.call('LPOP', flight_key, size)))
  end
  redis.call('HDEL', claim_key, '#' .. number, '@' .. number)
  redis.call('HINCRBY', count_key, 'processed', size)
  return size
end

-- take pops due ids of a shard and adds them, with their records, to the answer. It deletes tombstones. Crowded
-- ids and ids beyond the bounds stay for pop.lua. take returns the ids and the number of ids that are left, or
-- nil if pop.lua must serve the shard.
local function take(jobs_key, ready_key, count_key, most, answer)
  local ids = redis.call('LPOP', ready_key, most)
  if not ids then return {}, 0 end
  local left = #ids == most and redis.call('LLEN', ready_key) or 0
  local records
  if ids[2] then
    records = redis.call('HMGET', jobs_key, unpack(ids))
  else
    records = {redis.call('HGET', jobs_key, ids[1])}
  end
  local flown, deleted, back = {}, {}, nil
  for i = 1, #ids do
    local record = records[i]
    if record == 'x' then
      deleted[#deleted + 1] = ids[i]
    elseif record then
      local form = string.byte(record, 1)
      bytes_left = bytes_left - #record
      payloads_left = payloads_left - (form == 106 and 32 or 1)
      if form ~= 97 and form ~= 101 and form ~= 106 or bytes_left < 0 or payloads_left < 0 then
        back = #flown > 0 and i or 1
        break
      end
      answer[#answer + 1] = ids[i]
      answer[#answer + 1] = record
      flown[#flown + 1] = ids[i]
    end
  end
  if #flown == 0 and left > 0 then back = 1 end -- only tombstones, and due ids behind them
  if back then
    local rest = {}
    for j = #ids, back, -1 do rest[#rest + 1] = ids[j] end
    left = redis.call('LPUSH', ready_key, unpack(rest))
    if back == 1 then return nil end
  end
  if #deleted > 0 then
    redis.call('HDEL', jobs_key, unpack(deleted))
    redis.call('HINCRBY', count_key, 'tombs', -#deleted)
  end
  ids_left = ids_left - #flown
  return flown, left
end

-- serve serves a shard. The shard's arguments come after p, up to stop.
local function serve(tag, p, stop)
  claim_key = tag .. 'claim'
  local number = ARGV[p + 2]
  local pops = number ~= '0'
  local acks = p + 6
  local acked = acks <= stop and ARGV[acks]
  local is = redis.call('HMGET', claim_key, 'instance', 'fence', 'recover', 'pop', 'max_crashes', '#' .. (acked or ''))
  if is[1] ~= instance or is[2] ~= ARGV[p + 1] or is[3] then return 'x' end
  if pops then
    if tonumber(number) ~= tonumber(is[4] or 0) + 1 then return 'x' end
    if ids_left < 1 or bytes_left < 1 or payloads_left < 1 then return 'x' end
  end
  local due_key, retry_key, parked_key, crashes_key = tag .. 'due', tag .. 'retry', tag .. 'parked', tag .. 'crashes'
  local suspects_key, spill_key, late_key, postponed_key = tag .. 'suspects', tag .. 'spill', tag .. 'late', tag .. 'postponed'
  local urgent_key = tag .. 'urgent'
  local quiet = redis.call('EXISTS', due_key, retry_key, parked_key, crashes_key, suspects_key, spill_key, late_key, postponed_key, urgent_key) == 0
  local first, postponed
  if not quiet then
    if redis.call('EXISTS', crashes_key, suspects_key, spill_key, late_key, urgent_key, tag .. 'stale') > 0 then return 'x' end
    postponed = redis.call('EXISTS', postponed_key) == 1
    first = first_due(due_key, retry_key)
    if pops and first and first <= now then return 'x' end
  end

  local jobs_key, ready_key, flight_key = tag .. 'jobs', tag .. 'ready', tag .. 'flight'
  local flying = redis.call('LLEN', flight_key)
  if acked then
    local cost = quiet and flying or flying * 4 -- parked records may have 16 KiB per id, and move
    if cost > acks_left then return 'x' end
    acks_left = acks_left - cost
  end
  local done, again, open = 0, 0, ''
  if acked and quiet and stop == acks + 1 and ARGV[stop] == '0' and tonumber(is[6] or 0) == flying then
    if flying > 0 then done = finish_only(jobs_key, flight_key, tag .. 'count', acked, flying) end
  elseif flying > 0 then
    read()
    if acked then
      done, again = finish(jobs_key, ready_key, due_key, flight_key, not quiet and parked_key or nil, nil, tag .. 'count', acks, stop)
      if again > 0 then first = first_due(due_key, retry_key) end
    end
    open = open_flights()
  end
  if not pops then
    if again > 0 then redis.call('PUBLISH', tag .. 'wake', '0') end
    return done
  end

  local answer = {open, first and string.format('%.0f', first) or '', 0}
  -- A record may have 16 KiB, and Redis copies everything that a command reads.
  local flown, left = take(jobs_key, ready_key, tag .. 'count', math.min(tonumber(ARGV[p + 3]), ids_left, 128), answer)
  if not flown then return 'x' end
  answer[3] = left
  local crashes = is[5] ~= ARGV[p + 4] and {'max_crashes', ARGV[p + 4]} or {}
  if #flown > 0 then
    redis.call('RPUSH', flight_key, unpack(flown))
    if postponed then redis.call('ZREM', postponed_key, unpack(flown)) end
    redis.call('HSET', claim_key, 'pop', number, '#' .. number, #flown, '@' .. number, now_text, unpack(crashes))
    answer[1] = open == '' and number or open .. ' ' .. number
  else
    redis.call('HSET', claim_key, 'pop', number, unpack(crashes))
  end
  return answer
end

local answers = {now_text}
local p = 3
for i, tag in ipairs(KEYS) do
  local stop = p + 5 + tonumber(ARGV[p + 5])
  answers[i + 1] = serve(tag, p, stop)
  p = stop
end
return answers
