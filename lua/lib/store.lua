-- Included by the pushes, after record and spill: stores payloads one by one. push.lua has the
-- arguments and the codes. It expects n (jobs), ids, mode, width, now, last and base; old (records that
-- were read) and read (their number); defer and deferred, which are nil except in lib/coalesce.lua; strict. If
-- strict is true, no job is stored after a refused job. It leaves a code for each stored or refused job in `answer`,
-- and new due ids in `ready`.

-- read_on reads the next records. In mode m it reads the record of an id once.
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
-- An id in flight has a record.
local in_flight = {}
if n > 8 then
  for _, id in ipairs(redis.call('LRANGE', KEY.flight, 0, -1)) do in_flight[id] = true end
else
  if read < n then read_on() end
  for i = 1, n do
    if old[i] and redis.call('LPOS', KEY.flight, ids[i]) then in_flight[ids[i]] = true end
  end
end
-- A Redis that is out of memory refuses the first write of a script, and no later write. This first
-- write is outside of the pcall below, so a refusal ends the script with its error, and nothing is
-- stored (I6). Inside of the pcall it would look like a damaged record.
local unscored = mode == 'a' and n or 0
for i = 7, mode == 'm' and #ARGV or 0, 4 do
  if ARGV[i] == '' then unscored = unscored + 1 end
end
redis.call('HSET', KEY.count, 'last', string.format('%.0f', unscored > 0 and base + unscored - 1 or last))

local waiting, parked = {}, {}
local answer, ready, wake, joins = {}, {}, false, false
local work, most_work = 0, 2000 -- about 2,000 payloads or 1 MiB: see lib/measure.lua
local full = {} -- ids with a refused payload; equal payloads still merge, others are refused, too

-- weigh adds the cost of a change to a record. A record of form j is read and written as a whole, or
-- moved to the spill.
local function weigh(record, changed)
  work = work + 1
  if not record then return end
  work = work + math.floor(#record / 512)
  local k = tonumber(string.match(record, '^[jp]%S+ %d+ (%d+) ') or 0)
  work = work + (changed and string.byte(changed, 1) == 115 and k or math.floor(k / 8))
end

-- entry returns payload, score (text) and due time (us) of job i.
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

-- place enqueues an id that did not wait.
local function place(id, at, was_tombstone)
  if at <= now then
    -- A tombstone's entry in the ready list serves the new job.
    if not was_tombstone then ready[#ready + 1] = id end
    return
  end
  -- Finding that entry would take time in proportion to the list. It stays, and the pop skips it.
  if was_tombstone then redis.call('HSET', KEY.stale, id, 1) end
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
  local was_tombstone = record == 'x'
  if was_tombstone then record = false end
  local later = defer and defer(i, id, record, busy)
  at = later or at
  -- spill_add reads the record before it changes anything. An unreadable record refuses this job only.
  local sound, code, changed, cost = pcall(spill_add, KEY.spill, KEY.spillx, 'w', id, record, payload, score, at, full[id] and 0 or most, most_bytes, busy and old[i])
  if not sound then code, changed, cost = '4', nil, nil end
  if code == '2' or code == '3' then
    if full[id] then code = '5' end
    full[id] = true
  end
  answer[i] = code
  if strict and code > '1' then break end
  if later and (code == '0' or code == '1') then changed = deferred(id, later, changed, record, busy) end
  if changed then
    redis.call('HSET', hash, id, changed)
    seen[id] = changed
    if busy then
      joins = joins or not record
    elseif not record then
      place(id, at, was_tombstone)
      if was_tombstone then redis.call('HINCRBY', KEY.count, 'tombs', -1) end
    end
  elseif record then
    seen[id] = record
  end
  weigh(record, changed)
  work = work + (cost or 0)
  if work >= most_work and (n > 8 or defer) then break end
end
