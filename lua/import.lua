-- import: store jobs of another system. However often a job is sent, it is stored once.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
--#keys morgue dead reply since from out
-- An entry is a job of the other system. Entries have rising numbers, and a large entry comes in parts.
-- ARGV  1 maximum number of waiting payloads per id  2 their maximum bytes per id  3 channel that wakes the
--       owner  4 the field of the source
--       5 'forget', alone: refuse all entries of this source from now on
--       or parts of entries, in the order of the entries and of their parts, each in one of two shapes:
--         id, number, payload: a whole entry that waits, is due now, has not failed, has no error, and has
--           a single payload of at most 16 KiB
--         id, what, error, then the payloads of the part, lowest score first and above the scores of the
--           part before it; each is 8 bytes score (IEEE 754, big endian) + payload
--         what: "kind number first count total bytes retry time"
--           kind   w (waits), m (is in the morgue) or r (the caller refuses it; it has no payloads)
--           first  number of payloads in the parts before this part;  count  number of payloads in this part
--           total, bytes  payloads and bytes of the entry;  time (us)  its due time, or time of its burial
-- Returns one character per part: 0 stored  d stored before, nothing was done  2 too many payloads
--           3 too many bytes  4 the record of the id cannot be read  5 an earlier entry of the id was refused
--           r refused by the caller  u an earlier part of the entry is missing
--         If there are fewer characters than parts, the caller sends the rest again.
-- Errors: REMOVED as push.lua; FORGOTTEN source; DAMAGED the number of the source cannot be read
-- Keeps I2, I3, and I6 for a part.
--
-- Field <source> of from is the highest number that this shard has answered. It is "x time" (us) after the
-- source is forgotten. An id that is behind or ahead of it has a field <source> NUL <id> with
-- "taken open done base": entries up to number taken are stored; done payloads of entry open are stored,
-- or done is 0 if the entry was refused; base is the first place of its payloads (lib/spill.lua). So no
-- entry of an id overtakes a refused entry, and a refused entry may come again after entries of other ids.
--
-- An entry joins the waiting job of its id. The job gets the retry count and due time of the entry and, if
-- there is one, its error. The payloads of the entry come before equal scores, because they were pushed
-- before. A blocked or held id stays blocked or held, and a quarantined id keeps its due time. An entry
-- whose id is in flight is parked as a new job. The limits of pushes apply when an entry begins; its later
-- parts are always stored.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local said = redis.call('HGET', KEY.count, 'last') or 0
if not tonumber(said) then return redis.error_reply('REMOVED ' .. said) end
local source = ARGV[4]
local said_token = redis.call('HGET', KEY.from, source) or '0'
local token = tonumber(said_token)
if #ARGV == 5 then
  redis.call('HSET', KEY.from, source, 'x ' .. string.format('%.0f', now))
  return ''
end
if string.byte(said_token, 1) == 120 then return redis.error_reply('FORGOTTEN ' .. source) end
if not token then return redis.error_reply('DAMAGED the number of the last entry of ' .. source .. ' is no number: ' .. said_token) end
-- A refusal of this first write ends the script with its error, as in lib/store.lua.
redis.call('HSET', KEY.from, source, said_token)
local most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

--#include micros
--#include record
--#include sound
--#include spill
--#include waiting
--#include measure
--#include takein
--#include morgue

-- at has the place of each part in ARGV. plain has the number of a part of the first shape. Most parts
-- have that shape, and the other shape costs several times as much.
local at, plain, n, p = {}, {}, 0, 5
while p <= #ARGV do
  local number = tonumber(ARGV[p + 1])
  n = n + 1
  at[n], plain[n] = p, number or false
  p = p + 3
  if not number then p = p + tonumber(string.match(ARGV[p - 2], '^%S+ %d+ %d+ (%d+)')) end
end

-- part_of parses part i.
local function part_of(i)
  local p = at[i]
  if plain[i] then
    return {id = ARGV[p], kind = 'w', number = plain[i], first = 0, count = 1, total = 1, bytes = #ARGV[p + 2] - 8, retry = -1, at = 0, err = '', from = p + 2}
  end
  local kind, number, first, count, total, bytes, retry, at = string.match(ARGV[p + 1], '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+)')
  return {id = ARGV[p], kind = kind, number = tonumber(number), first = tonumber(first), count = tonumber(count), total = tonumber(total),
    bytes = tonumber(bytes), retry = tonumber(retry), at = tonumber(at), err = ARGV[p + 2], from = p + 3}
end

-- The script reads records and fields of ids in blocks, because the call may end early. Most shards have no
-- fields of ids.
local records, states, read, few = {}, {}, 0, 64
local remembered = redis.call('HLEN', KEY.from) > 1
local function state_of(id) return source .. '\0' .. id end
local function read_on()
  local ids, m = {}, 0
  for i = read + 1, math.min(n, read + few) do
    local id = ARGV[at[i]]
    if records[id] == nil then
      records[id] = false
      m = m + 1
      ids[m] = id
    end
    read = i
  end
  few = 250
  if m == 0 then return end
  local found = redis.call('HMGET', KEY.jobs, unpack(ids))
  for i = 1, m do records[ids[i]] = found[i] end
  if not remembered then return end
  local names = {}
  for i = 1, m do names[i] = state_of(ids[i]) end
  local known = redis.call('HMGET', KEY.from, unpack(names))
  for i = 1, m do states[ids[i]] = known[i] end
end

-- flying reports whether an id with a record is in flight.
local flights
local function flying(id)
  if n <= 8 then return redis.call('LPOS', KEY.flight, id) and true or false end
  if not flights then
    flights = {}
    local all = redis.call('LRANGE', KEY.flight, 0, -1)
    for i = 1, #all do flights[all[i]] = true end
    weigh(math.floor(#all / 16), 0)
  end
  return flights[id] or false
end

local function know(id, state)
  states[id] = state
  if state then redis.call('HSET', KEY.from, state_of(id), state) else redis.call('HDEL', KEY.from, state_of(id)) end
end

-- payloads returns the payloads of a part that are not stored yet, as a job.
local function payloads(part)
  local job = {retry = part.retry, at = math.max(part.at, now), err = part.err, n = 0, bytes = 0, shift = 0, data = {}, score = {}}
  for i = part.from + part.skip, part.from + part.count - 1 do
    local n = job.n + 1
    job.n, job.data[n], job.score[n] = n, string.sub(ARGV[i], 9), f17(ieee(ARGV[i], 1))
    job.bytes = job.bytes + #job.data[n]
  end
  job.next = job.n + 1
  return job
end

-- beyond returns the character of the answer if the entry and the waiting job exceed the limits together.
-- In an entry of one part, equal payloads count once.
local function beyond(part, job, there)
  local n, bytes = part.total, part.bytes
  if there and (n + there.n > most or bytes + there.bytes > most_bytes) and job.n == part.total then
    weigh(job.n, 0)
    local prefix = spill_prefix('w', part.id)
    for i = 1, job.n do
      local data = job.data[i]
      local equal
      if there.crowded then equal = redis.call('HEXISTS', KEY.spillx, prefix .. bare(data)) == 1 else equal = find(there, data) end
      if equal then n, bytes = n - 1, bytes - #data end
    end
  end
  if there then n, bytes = n + there.n, bytes + there.bytes end
  return n > most and '2' or bytes > most_bytes and '3' or nil
end

local ready, wake, lined, joins = {}, nil, false, false

-- Records of new ids are written together.
local fresh, size, written = {}, 0, {}
local now_head = 'e' .. b7(now)
local function flush()
  if size > 0 then redis.call('HSET', KEY.jobs, unpack(fresh, 1, size)) end
  fresh, size, written = {}, 0, {}
end

-- schedule makes an id wait for its due time, which no push moves: see coalesce.lua.
local function schedule(set, id, at)
  redis.call('ZREM', KEY.since, id)
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) > at then wake = string.format('%.0f', at) end
  redis.call('ZADD', set, string.format('%.0f', at), id)
end

-- mark_postponed stores since when a postponed id has waited, or removes the mark of another id.
local function mark_postponed(id, job)
  if job.since and not is_held(job.at) then
    redis.call('ZADD', KEY.postponed, string.format('%.0f', job.since), id)
  else
    redis.call('ZREM', KEY.postponed, id)
  end
end

local function mark_late(id, failed)
  if failed then redis.call('HSET', KEY.late, id, 1) else redis.call('HDEL', KEY.late, id) end
end

-- arrive enqueues an id that did not wait, as place in lib/store.lua does.
local function arrive(id, job, was_tombstone)
  if was_tombstone then redis.call('HINCRBY', KEY.count, 'tombs', -1) end
  if job.at > now then
    if was_tombstone then redis.call('HSET', KEY.stale, id, 1) end
    schedule(job.retry >= 0 and KEY.retry or KEY.due, id, job.at)
    return
  end
  if not was_tombstone then ready[#ready + 1] = id end
  if job.retry >= 0 then redis.call('HSET', KEY.late, id, 1) end
end

-- place_of returns the key where an id waits that is not in flight, and its due time (us) if it has one.
local function place_of(id)
  for _, set in ipairs({KEY.due, KEY.retry, KEY.blocked}) do
    local at = redis.call('ZSCORE', set, id)
    if at then return set, tonumber(at) end
  end
  if redis.call('HEXISTS', KEY.crashes, id) == 1 then return KEY.suspects end
  return in_line(id) and KEY.urgent or KEY.ready
end

-- reconcile gives the entry the values that it may not change at the place of its id.
local function reconcile(job, there, place, at)
  if job.err == '' then job.err = there.err end
  if place == KEY.blocked then
    job.retry, job.at = there.retry, there.at
    if there.err ~= '' then job.err = there.err end
  elseif place == KEY.suspects or at and is_held(at) then
    job.at, job.since, job.group = there.at, there.since, there.group
  elseif job.at <= now then
    if place == KEY.ready or place == KEY.urgent then job.at = math.min(job.at, there.at) end
    job.since, job.group = there.since, there.group
  end
end

-- move moves a waiting id to its new place.
local function move(id, job, place)
  if place == KEY.blocked then return end
  mark_postponed(id, job)
  if place == KEY.suspects then return mark_late(id, job.retry >= 0) end
  local set = job.at > now and (job.retry >= 0 and KEY.retry or KEY.due) or KEY.ready
  if place == KEY.urgent then
    redis.call('ZADD', KEY.urgent, set == KEY.ready and string.format('%.0f', job.at) or -1, id)
  elseif place ~= KEY.ready and place ~= set then
    redis.call('ZREM', place, id)
  end
  if set ~= KEY.ready then
    if place == KEY.ready then -- finding its entry would be slow, so the pop skips it
      redis.call('HSET', KEY.stale, id, 1)
    end
    redis.call('HDEL', KEY.late, id)
    return schedule(set, id, job.at)
  end
  if place ~= KEY.ready and place ~= KEY.urgent then
    lined = true
    if not seat(id, job.at) then ready[#ready + 1] = id end
  end
  mark_late(id, job.retry >= 0)
end

-- wait stores a part that waits, and returns its character.
local function wait(part, job)
  local id, record = part.id, records[part.id]
  local was_tombstone = record == 'x'
  if was_tombstone then record = false end
  local busy, flew = record and flying(id), nil
  if busy then
    flew = record
    record = redis.call('HGET', KEY.parked, id)
  end
  if not record and not busy and part.total == 1 and job.retry < 0 and job.err == '' and job.bytes <= 16384 then
    local code = beyond(part, job)
    if code then return code end
    records[id] = 'e' .. b7(job.at) .. ARGV[part.from]
    redis.call('HSET', KEY.jobs, id, records[id])
    arrive(id, job, was_tombstone)
    weigh(1, job.bytes)
    return '0'
  end
  local there = record and parse(record) or nil
  if there then there.crowded = string.byte(record, 1) == 115 end
  local from = spill_from(flew)
  local begins = part.first + part.skip == 0
  local code = begins and beyond(part, job, there)
  if code then return code end
  weigh_id()
  weigh(job.n, job.bytes)
  if record then weigh_record(record) end
  if not begins then -- as a push of now
    job.retry, job.err = -1, ''
    if there then job.retry, job.at, job.since, job.group, job.err = there.retry, there.at, there.since, there.group, there.err end
  end
  if busy then
    job.retry = -1
    if begins and job.at > now then redis.call('ZREM', KEY.since, id) end
    if there and job.err == '' then job.err = there.err end
    redis.call('HSET', KEY.parked, id, unite('w', part, job, there, record, from))
    joins = joins or not record
    return '0'
  end
  local place, at
  if there and begins then
    place, at = place_of(id)
    reconcile(job, there, place, at)
  end
  records[id] = unite('w', part, job, there, record, from)
  redis.call('HSET', KEY.jobs, id, records[id])
  if not there then arrive(id, job, was_tombstone) elseif begins then move(id, job, place) end
  return '0'
end

-- take_buried stores a part in the morgue. The record there has the time and the error of the latest burial.
local function take_buried(part, job)
  local record = redis.call('HGET', KEY.morgue, part.id)
  local there = record and parse(record)
  local at, retry, err = part.at > 0 and math.min(part.at, now) or now, part.retry, part.err
  if there and there.at > at then
    at, retry, err = there.at, there.retry, there.err == '' and err or ''
  end
  weigh_id()
  if record then weigh_record(record) end
  weigh(job.n, job.bytes)
  weigh_spill(part.id, job.n, job.bytes)
  if there and string.byte(record, 1) ~= 115 then weigh_spill(part.id, there.n, there.bytes) end
  bury_payloads(KEY.morgue, KEY.dead, KEY.count, KEY.spill, KEY.spillx, part.id, job, retry, err, at, true)
  return '0'
end

-- known_of returns the character of the answer if the part must not be stored. Otherwise it returns nil and
-- the progress of the entry, which is the numbers of the id's field.
local function known_of(part)
  local state = states[part.id]
  if not state then
    if part.number <= token then return 'd' end
    return nil, part.number - 1, 0, 0, 0
  end
  local taken, open, done, base = string.match(state, '^(%d+) (%d+) (%d+) (%d+)')
  if not taken then return '4' end
  taken, open = tonumber(taken), tonumber(open)
  if part.number <= taken then return 'd' end
  if open > 0 and part.number > open then return '5' end
  if part.number ~= open then done, base = 0, 0 end
  return nil, taken, open, tonumber(done), tonumber(base)
end

-- take stores a part, and returns its character.
local function take(part)
  local code, taken, open, done, base = known_of(part)
  if code then return code end
  if part.first > done then return 'u' end
  if done > 0 and part.first + part.count <= done then return 'd' end
  part.skip, part.base = done - part.first, base
  local sound
  if part.kind == 'r' then
    sound, code = true, 'r'
  else
    sound, code = pcall(part.kind == 'm' and take_buried or wait, part, payloads(part))
    if not sound then code = '4' end
  end
  local number = string.format('%.0f', part.number)
  if code ~= '0' then
    if part.number ~= open then know(part.id, string.format('%.0f', taken) .. ' ' .. number .. ' 0 0') end
  elseif part.first + part.count < part.total then
    know(part.id, string.format('%.0f', taken) .. ' ' .. number .. string.format(' %d %.0f', part.first + part.count, part.base))
  elseif states[part.id] then
    know(part.id, part.number < token and number .. ' 0 0 0' or false)
  end
  return code
end

local answer = {}
for i = 1, n do
  if i > read then read_on() end
  local id, number, code = ARGV[at[i]], plain[i], nil
  if number and number > token and records[id] == false and not states[id] and #ARGV[at[i] + 2] - 8 <= most_bytes and most > 0 then
    code = '0'
    local record = now_head .. ARGV[at[i] + 2]
    records[id], written[id] = record, true
    fresh[size + 1], fresh[size + 2] = id, record
    size = size + 2
    ready[#ready + 1] = id
    weigh(2, #record)
    if size >= 1000 then flush() end
  else
    if written[id] then flush() end
    local part = part_of(i)
    code, number = take(part), part.number
    weigh(1, 0)
  end
  answer[i] = code
  if code ~= 'd' and code ~= 'u' and number > token then token = number end
  if enough() then break end
end
flush()

redis.call('HSET', KEY.from, source, string.format('%.0f', token))
if #ready > 0 and redis.call('RPUSH', KEY.ready, unpack(ready)) == #ready or lined then wake = '0' end
if wake then redis.call('PUBLISH', ARGV[3], wake) end
if joins then redis.call('PUBLISH', ARGV[3], '-1') end
return table.concat(answer)
