-- push: put payloads into one shard, all that it does in one step (I6, I7).
--
--#keys jobs ready count due flight parked stale spill spillx
-- ARGV  1 mode  2 most payloads waiting per id  3 most bytes waiting per id  4 channel to wake the owner
--       then per job, by mode:
--         a  id, tail                            tail = 2 bytes place in this push + payload
--         e  id, tail                            tail = 8 bytes score (IEEE 754, big endian) + payload
--         m  id, payload, score, perform_in      score and perform_in (us) may be empty
--       An id that is there more than 8 times goes by mode m, which reads its record once: that of a flight may have 1 MiB.
-- Returns the number of jobs when all were fresh ids; else one character per job:
--         0 stored  1 merged into an equal payload  2 too many payloads  3 too many bytes
--         4 the id's record cannot be read  5 an earlier payload of the id was refused by 2 or 3
--       Fewer characters than jobs: the rest was not looked at, and is to be sent again. What a job costs depends on
--       what waits for its id, up to 16 KiB or 32 payloads that move to the spill; Redis serves no other client meanwhile.
-- Errors: REMOVED the field that says so: the queue is deleted, nothing was stored; see remove_shard.lua
-- Keeps I2 (stored before the answer) and I3 (default scores rise strictly within a shard; no
-- payload of an id is stored after an earlier one of the same push was refused).
--
-- The common push, fresh ids that are due now, is a handful of bulk commands and one
-- concatenation per job. Anything else takes the second half of the script.
local mode = ARGV[1]
local width = mode == 'm' and 4 or 2
local n = (#ARGV - 4) / width
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local said = redis.call('HGET', KEY.count, 'last') or 0
local last = tonumber(said)
if not last then return redis.error_reply('REMOVED ' .. said) end
local base = now
if last >= base then base = last + 1 end

--#include micros

local ids = {}
for i = 1, n do ids[i] = ARGV[5 + (i - 1) * width] end
-- Records are read some at a time, as the loop of the second half may end before it comes to the
-- others.
local old, read, few = {}, 0, 64
local fresh = mode ~= 'm'
while fresh and read < n do
  local found = redis.call('HMGET', KEY.jobs, unpack(ids, read + 1, math.min(n, read + few)))
  for i = 1, #found do
    if found[i] then fresh = false break end
  end
  if not fresh then
    for i = 1, #found do old[read + i] = found[i] end
  end
  read, few = read + #found, math.min(256, few * 2)
end

if fresh then
  local head = mode .. b7(mode == 'a' and base or now)
  for i = 6, #ARGV, 2 do ARGV[i] = head .. ARGV[i] end
  local added = redis.call('HSET', KEY.jobs, unpack(ARGV, 5))
  if added == n then
    if mode == 'a' then redis.call('HSET', KEY.count, 'last', string.format('%.0f', base + n - 1)) end
    if redis.call('RPUSH', KEY.ready, unpack(ids)) == n then redis.call('PUBLISH', ARGV[4], '0') end
    return n
  end
  -- An id came twice in this push, which has 8 jobs at most. Its last record overwrote the first;
  -- the loop below writes every id of the push again, and ends early of more jobs only.
  for i = 6, #ARGV, 2 do ARGV[i] = string.sub(ARGV[i], 9) end
end

--#include record
--#include spill

-- read_on reads the next records; of mode m an id's is read once.
local known = {}
local function read_on()
  local from, to = read + 1, math.min(n, read + 64)
  local asked = {}
  for i = from, to do
    if mode ~= 'm' or known[ids[i]] == nil then
      known[ids[i]] = false
      asked[#asked + 1] = ids[i]
    end
  end
  local found = #asked > 0 and redis.call('HMGET', KEY.jobs, unpack(asked)) or {}
  for i = 1, #asked do known[asked[i]] = found[i] end
  for i = from, to do old[i] = known[ids[i]] end
  read = to
end

local most, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
-- Only an id with a record can be in flight.
local in_flight = {}
if n > 8 then
  for _, id in ipairs(redis.call('LRANGE', KEY.flight, 0, -1)) do in_flight[id] = true end
else
  if read < n then read_on() end
  for i = 1, n do
    if old[i] and redis.call('LPOS', KEY.flight, ids[i]) then in_flight[ids[i]] = true end
  end
end
-- It raises what Redis answers if it refuses to write, as it does when it is out of memory: then
-- nothing is stored (I6). After a first write Redis refuses no other. Inside of pcall, below, a
-- refusal would pass for a damaged record.
local unscored = mode == 'a' and n or 0
for i = 7, mode == 'm' and #ARGV or 0, 4 do
  if ARGV[i] == '' then unscored = unscored + 1 end
end
redis.call('HSET', KEY.count, 'last', string.format('%.0f', unscored > 0 and base + unscored - 1 or last))

local waiting, parked = {}, {}
local answer, ready, wake, joins = {}, {}, false, false
local work, most_work = 0, 2000 -- about as many payloads, or 1 MiB, as elsewhere: see lib/measure.lua
local full = {} -- ids of which a payload was refused: equal payloads merge, and no other is stored

-- weigh adds what it took to add to a record: one of form j is read and written as a whole, or
-- moved to the spill.
local function weigh(record, changed)
  work = work + 1
  if not record then return end
  work = work + math.floor(#record / 512)
  local k = tonumber(string.match(record, '^[jp]%S+ %d+ (%d+) ') or 0)
  work = work + (changed and string.byte(changed, 1) == 115 and k or math.floor(k / 8))
end

-- entry gives payload, score text and due time (us) of job i.
local function entry(i)
  local p = 5 + (i - 1) * width
  if mode == 'm' then
    local at = ARGV[p + 3] == '' and now or tonumber(ARGV[p + 3])
    return ARGV[p + 1], ARGV[p + 2], at
  end
  local tail = ARGV[p + 1]
  if mode == 'e' then return string.sub(tail, 9), f17(ieee(tail, 1)), now end
  return string.sub(tail, 3), '', now
end

-- place enqueues an id that was not waiting.
local function place(id, at, entombed)
  if at <= now then
    -- A tombstone's entry in the ready list serves the new job.
    if not entombed then ready[#ready + 1] = id end
    return
  end
  -- To find that entry would take as long as the list is. It stays, and the pop passes over it.
  if entombed then redis.call('HSET', KEY.stale, id, 1) end
  local first = redis.call('ZRANGE', KEY.due, 0, 0, 'WITHSCORES')
  if not first[2] or tonumber(first[2]) > at then wake = string.format('%.0f', at) end
  redis.call('ZADD', KEY.due, string.format('%.0f', at), id)
end

for i = 1, n do
  if i > read then read_on() end
  local id = ids[i]
  local payload, score, at = entry(i)
  if score == '' then
    score = f17(base / 1000000)
    base = base + 1
  end
  local busy = in_flight[ids[i]]
  local seen, hash = waiting, KEY.jobs
  if busy then seen, hash = parked, KEY.parked end
  local record = seen[id]
  if record == nil then
    if busy then record = redis.call('HGET', KEY.parked, id) else record = old[i] end
  end
  local entombed = record == 'x'
  if entombed then record = false end
  -- It reads the record before it changes anything. One that cannot be read refuses its job alone.
  local sound, code, changed = pcall(spill_add, KEY.spill, KEY.spillx, 'w', id, record, payload, score, at, full[id] and 0 or most, most_bytes, busy and old[i])
  if not sound then code, changed = '4', nil end
  if code == '2' or code == '3' then
    if full[id] then code = '5' end
    full[id] = true
  end
  answer[i] = code
  if changed then
    redis.call('HSET', hash, id, changed)
    seen[id] = changed
    if busy then
      joins = joins or not record
    elseif not record then
      place(id, at, entombed)
      if entombed then redis.call('HINCRBY', KEY.count, 'tombs', -1) end
    end
  elseif record then
    seen[id] = record
  end
  weigh(record, changed)
  if work >= most_work and n > 8 then break end
end
if #ready > 0 and redis.call('RPUSH', KEY.ready, unpack(ready)) == #ready then wake = '0' end
if wake then redis.call('PUBLISH', ARGV[4], wake) end
if joins then redis.call('PUBLISH', ARGV[4], '-1') end
return table.concat(answer)
