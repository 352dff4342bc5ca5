-- take: take in the jobs of the frozen shards of a former layout, each once, and then open the shard. See queue/reshard.
--
--#keys count claim coming from jobs ready due retry blocked flight parked suspects crashes stale urgent late postponed
--#keys morgue dead spill spillx aside states statesx since
-- ARGV  1 step: prepare, forget, floor, take or over
--       prepare  2 the number of the shard's parents, the frozen shards whose ids may belong to it. Closes a shard that was
--                never open, so that no instance can claim it. An open shard stays open.
--       forget   Deletes what prepare and floor have written, if the shard is closed and nothing was stored in it.
--       floor    2 the highest last score of the parents  3 their highest fence  4 since when their longest waiting job waits
--                (us), or ''  5 the queue of their rule `then` (see claim.lua), or ''. Pushes get higher scores, claims get
--                higher fences, and payloads that people bury before the first claim are passed on.
--       take     2 source: a name for the parent  3 when it was frozen (us)  4 the number of the first entry
--                5 channel that wakes the owner; then entries of the source, whose numbers follow each other. Each has an id,
--                a place, and data:
--                  r            the record of an id that is ready
--                  u<score>, d<score>, t<score>, b<score>   of an id in urgent, due, retry or blocked
--                  q<crashes>   of an id in quarantine
--                  m<score>     the record of an id in the morgue, with its score in dead
--                  U            nothing: an urgent id that waits elsewhere
--                  n<us>        nothing: the first push of an id that later pushes delay
--                  k<us>        the state of an id
--                  a            a record that was set aside; the id is the field of aside
--                  x            nothing at all
--                A record of form s is followed by three numbers, and then by payloads from the spill as they lie there,
--                without the prefix: the payloads in the parts before this part, those of all parts, those of this part.
--       over     2 source  3 when it was frozen  4 the number of its entries  5, 6 processed and failed, to be added
--                7 channel that wakes the owner. If all parents are over, the shard is open.
-- Returns {'OK', n}  take: entries and parts that are taken now or were taken before. The caller sends the rest again.
--                    over: parents that are not over
--         {'OLD'}       the parent was frozen anew later; nothing was done
--         {'GAP', n}    an earlier entry is missing, n are taken; nothing was done
--         {'UNPREPARED'}  the shard is neither closed nor open, because Redis has lost that; nothing was done
--         {'BUSY'}      prepare: such a shard has ids in flight
--         {'DAMAGED', n, id}  the record of the id in this shard cannot be read. n entries and parts are taken
-- Errors: REMOVED as push.lua
-- Keeps I2, I3, and I6 for an entry or part.
--
-- coming is there while the shard is closed. It has the fields need (parents that are not over), due (the oldest due time
-- of the parents) and "over <source>". Field came of count is there once the shard was opened. Field <source> of from has
-- "frozen taken done base": when the parent was frozen, the number of entries that are taken, and of the next entry the
-- payloads that are taken and the first place of its payloads (lib/takein.lua). " over" follows once all entries of that
-- freeze are taken. Numbers without a gap make sure that nothing is lost, whatever a failover forgets.
--
-- An id may have been pushed to the shard before. Its jobs become one job, with the retry count, the error, the due time and
-- the place that it had in the parent. The payloads of the parent come first among equal scores.
local step, source = ARGV[1], ARGV[2]
local said = redis.call('HMGET', KEY.count, 'last', 'came')
local last = tonumber(said[1] or 0)
if not last then return redis.error_reply('REMOVED ' .. said[1]) end
local is_closed = redis.call('EXISTS', KEY.coming) == 1

if step == 'prepare' then
  if is_closed or said[2] then return {'OK', 0} end
  if redis.call('EXISTS', KEY.flight) == 1 then return {'BUSY'} end
  redis.call('HDEL', KEY.claim, 'instance', 'pop')
  redis.call('HSET', KEY.coming, 'need', ARGV[2])
  return {'OK', 0}
end
if step == 'forget' then
  if is_closed and redis.call('EXISTS', KEY.jobs, KEY.from) == 0 then redis.call('UNLINK', KEY.coming, KEY.count, KEY.claim) end
  return {'OK', 0}
end
if not is_closed and not said[2] then return {'UNPREPARED'} end

if step == 'floor' then
  if not is_closed then return {'OK', 0} end
  local high = redis.call('HGET', KEY.claim, 'fence')
  redis.call('HSET', KEY.count, 'last', last < tonumber(ARGV[2]) and ARGV[2] or said[1] or '0')
  if tonumber(high or 0) < tonumber(ARGV[3]) then redis.call('HSET', KEY.claim, 'fence', ARGV[3]) end
  local due = redis.call('HGET', KEY.coming, 'due')
  if ARGV[5] ~= '' then redis.call('HSET', KEY.count, 'then', ARGV[5]) end
  if ARGV[4] ~= '' and (not due or tonumber(ARGV[4]) < tonumber(due)) then redis.call('HSET', KEY.coming, 'due', ARGV[4]) end
  return {'OK', 0}
end

local state = redis.call('HGET', KEY.from, source) or '0 0 0 0'
local frozen, taken, done, base, ended = string.match(state, '^(%d+) (%d+) (%d+) (%d+)(.*)')
if not frozen then return redis.error_reply('DAMAGED the number of entries that are taken from ' .. source .. ' cannot be read: ' .. state) end
if tonumber(ARGV[3]) < tonumber(frozen) then return {'OLD'} end
if ARGV[3] ~= frozen then
  taken, done, base, ended = 0, 0, 0, ''
  state = ARGV[3] .. ' 0 0 0'
end
taken, done, base = tonumber(taken), tonumber(done), tonumber(base)

if step == 'over' then
  if taken ~= tonumber(ARGV[4]) or done > 0 then return {'GAP', taken} end
  redis.call('HDEL', KEY.claim, '') -- the first write needs no memory: see lease.lua
  redis.call('HSET', KEY.from, source, ARGV[3] .. string.format(' %.0f 0 %.0f over', taken, base))
  if not is_closed then return {'OK', 0} end
  if redis.call('HSETNX', KEY.coming, 'over ' .. source, 1) == 1 then
    redis.call('HINCRBY', KEY.count, 'processed', ARGV[5])
    redis.call('HINCRBY', KEY.count, 'failed', ARGV[6])
    if redis.call('HINCRBY', KEY.coming, 'need', -1) <= 0 then
      redis.call('UNLINK', KEY.coming)
      redis.call('HSET', KEY.count, 'came', 1)
      redis.call('PUBLISH', ARGV[7], '0')
      return {'OK', 0}
    end
  end
  return {'OK', tonumber(redis.call('HGET', KEY.coming, 'need'))}
end

local number = tonumber(ARGV[4])
if number > taken + 1 then return {'GAP', taken} end
-- A refusal of this first write ends the script with its error, as in lib/store.lua.
redis.call('HSET', KEY.from, source, state)

--#include record
--#include sound
--#include spill
--#include waiting
--#include measure
--#include takein

-- at has the place of each item in ARGV. An item is an entry, or a part of an entry.
local jobs = {r = KEY.ready, u = KEY.urgent, d = KEY.due, t = KEY.retry, b = KEY.blocked, q = KEY.suspects}
local at, kinds, crowds, n, p = {}, {}, {}, 0, 6
while p <= #ARGV do
  n = n + 1
  at[n], kinds[n] = p, string.sub(ARGV[p + 1], 1, 1)
  crowds[n] = string.byte(ARGV[p + 2], 1) == 115 and (jobs[kinds[n]] ~= nil or kinds[n] == 'm')
  p = p + 3
  if crowds[n] then p = p + 3 + tonumber(ARGV[p + 2]) end
end

-- The script reads records in blocks, because the call may end early.
local records, read = {}, 0
local function read_on()
  local ids, m = {}, 0
  for i = read + 1, math.min(n, read + 250) do
    local id = ARGV[at[i]]
    if jobs[kinds[i]] and records[id] == nil then
      records[id] = false
      m = m + 1
      ids[m] = id
    end
    read = i
  end
  if m == 0 then return end
  local found = redis.call('HMGET', KEY.jobs, unpack(ids))
  for i = 1, m do records[ids[i]] = found[i] end
end

-- Writes of new ids are collected. flush makes them.
local lists = {[KEY.jobs] = 'HSET', [KEY.ready] = 'RPUSH', [KEY.suspects] = 'RPUSH', [KEY.crashes] = 'HSET', [KEY.late] = 'HSET',
  [KEY.due] = 'ZADD', [KEY.retry] = 'ZADD', [KEY.blocked] = 'ZADD', [KEY.urgent] = 'ZADD', [KEY.postponed] = 'ZADD'}
local collected = {}
for key in pairs(lists) do collected[key] = {} end
local function flush()
  for key, command in pairs(lists) do
    local list = collected[key]
    for i = 1, #list, 1000 do redis.call(command, key, unpack(list, i, math.min(#list, i + 999))) end
    if #list > 0 then collected[key] = {} end
  end
end
local function collect(key, x, y)
  local list = collected[key]
  list[#list + 1] = x
  if y then list[#list + 1] = y end
end

-- stand sets the marks that a job asks for at its id, which waits in a place of the given kind.
local function stand(id, kind, score, record)
  local form = string.byte(record, 1)
  if form ~= 106 and form ~= 115 then return end
  if (kind == 'r' or kind == 'u' or kind == 'q') and has_failed(record) then collect(KEY.late, id, 1) end
  local since = kind ~= 'b' and (score == '' or not is_held(score)) and since_of(record)
  if since then collect(KEY.postponed, string.format('%.0f', since), id) end
end

-- obsolete makes the pop skip the entry that an id has in ready. A pop of a shard without scheduled and failed jobs looks at
-- no marks of such entries, so the entry of an id that is blocked or in quarantine is removed, which takes longer.
local function obsolete(id, kind)
  if kind ~= 'q' and kind ~= 'b' then return redis.call('HSET', KEY.stale, id, 1) end
  weigh(math.floor(redis.call('LLEN', KEY.ready) / 16), 0)
  redis.call('LREM', KEY.ready, 1, id)
  redis.call('HDEL', KEY.stale, id)
end

-- place puts an id that does not wait here into its place.
local function place(id, kind, score, record, was_tombstone)
  if was_tombstone then
    redis.call('HINCRBY', KEY.count, 'tombs', -1)
    if kind ~= 'r' then obsolete(id, kind) end
  end
  if kind == 'r' then
    if not was_tombstone then collect(KEY.ready, id) end
  elseif kind == 'q' then
    collect(KEY.suspects, id)
    collect(KEY.crashes, id, score)
  else
    collect(jobs[kind], score, id)
  end
  stand(id, kind, score, record)
end

-- settle puts an id that waits here into the place that it had in the parent. The entry of a deleted job of the id may be in
-- ready.
local function settle(id, kind, score, record)
  local urgent = redis.call('ZSCORE', KEY.urgent, id)
  local out = urgent and urgent + 0 >= 0
  for _, key in ipairs({KEY.due, KEY.retry, KEY.blocked}) do out = redis.call('ZREM', key, id) == 1 or out end
  if redis.call('HDEL', KEY.crashes, id) == 1 then out = redis.call('LREM', KEY.suspects, 1, id) == 1 end
  redis.call('HDEL', KEY.late, id)
  redis.call('ZREM', KEY.postponed, id)
  redis.call('ZREM', KEY.since, id) -- the due time of the parent holds
  if kind == 'r' or kind == 'u' then
    if kind == 'u' then
      if not out and redis.call('HEXISTS', KEY.stale, id) == 0 then redis.call('HSET', KEY.stale, id, 1) end
      redis.call('ZADD', KEY.urgent, score, id)
    elseif urgent then
      redis.call('ZADD', KEY.urgent, string.format('%.0f', head_if(record).at), id)
    elseif out and redis.call('HDEL', KEY.stale, id) == 0 then
      redis.call('RPUSH', KEY.ready, id)
    end
    return stand(id, kind, score, record)
  end
  if not out or redis.call('HEXISTS', KEY.stale, id) == 1 then obsolete(id, kind) end
  if urgent then redis.call('ZADD', KEY.urgent, -1, id) end
  place(id, kind, score, record)
end

--#include set_aside

-- job_of returns the job of an item and describes the item as a part.
local function job_of(i)
  local p, id, record = at[i], ARGV[at[i]], ARGV[at[i] + 2]
  if not crowds[i] then
    local job = parse(record)
    return job, {id = id, total = job.n, first = 0, count = job.n, skip = 0, base = 0}
  end
  local job = head_of(record)
  local part = {id = id, first = tonumber(ARGV[p + 3]), total = tonumber(ARGV[p + 4]), count = tonumber(ARGV[p + 5]), base = base}
  part.skip = done - part.first
  job.n, job.bytes, job.key, job.score = 0, 0, {}, nil
  for k = p + 6 + part.skip, p + 5 + part.count do
    job.n = job.n + 1
    job.key[job.n], job.data[job.n] = string.sub(ARGV[k], 1, 20), string.sub(ARGV[k], 21)
    job.bytes = job.bytes + #job.data[job.n]
  end
  return job, part
end

-- join stores the payloads of an item together with those that wait here. It returns the code of the answer if it cannot.
local function join(i, kind, score)
  local id, record = ARGV[at[i]], records[ARGV[at[i]]]
  local was_tombstone = record == 'x'
  if was_tombstone then record = false end
  local flew
  if record and not is_closed and redis.call('LPOS', KEY.flight, id) then
    flew = record
    record = redis.call('HGET', KEY.parked, id)
  end
  if not readable(record) then return 'DAMAGED' end
  local job, part = job_of(i)
  local there = record and parse(record) or nil
  local begins = part.first + part.skip == 0
  weigh_id()
  weigh(job.n, job.bytes)
  if record then
    weigh_record(record)
    there.crowded = string.byte(record, 1) == 115
    if job.err == '' then job.err = there.err end
    if not begins then job.retry, job.at, job.since, job.group, job.err = there.retry, there.at, there.since, there.group, there.err end
  end
  if flew then job.retry = -1 end -- it is a job of its own after the flight
  local united = unite('w', part, job, there, record, spill_from(flew))
  base = part.base
  redis.call('HSET', flew and KEY.parked or KEY.jobs, id, united)
  if flew then return end
  records[id] = united
  if not record then
    place(id, kind, score, united, was_tombstone)
  elseif begins then
    settle(id, kind, score, united)
  end
end

-- take_buried stores an item in the morgue. If payloads of the id were buried here meanwhile, their time and error stay.
local function take_buried(i, score)
  local id, data = ARGV[at[i]], ARGV[at[i] + 2]
  local record = redis.call('HGET', KEY.morgue, id)
  if not readable(record) then return 'DAMAGED' end
  local job, part = job_of(i)
  weigh_id()
  weigh(job.n, job.bytes)
  local n = job.n
  if record or crowds[i] then
    local there = record and parse(record) or nil
    if there then
      weigh_record(record)
      there.crowded = string.byte(record, 1) == 115
      n = -there.n
      job.retry, job.at, job.err = there.retry, there.at, there.err ~= '' and there.err or job.err
    else
      n = 0
    end
    data = unite('m', part, job, there, record, 1)
    base = part.base
    n = n + parse(data).n
  end
  redis.call('HSET', KEY.morgue, id, data)
  redis.call('ZADD', KEY.dead, 'NX', score, id)
  redis.call('HINCRBY', KEY.count, 'morgue', n)
end

local marks = {}

-- U marks an id as urgent that waits for its time or for a person.
function marks.U(id)
  if apart(id) or redis.call('HEXISTS', KEY.crashes, id) == 1 then redis.call('ZADD', KEY.urgent, 'NX', -1, id) end
end

function marks.n(id, us)
  local since = redis.call('ZSCORE', KEY.since, id)
  if redis.call('HEXISTS', KEY.jobs, id) == 1 and not (since and since + 0 <= us + 0) then redis.call('ZADD', KEY.since, us, id) end
end

function marks.k(id, us, state)
  weigh(0, #state)
  if redis.call('HSETNX', KEY.states, id, state) == 1 then redis.call('ZADD', KEY.statesx, us, id) end
end

function marks.a(field, _, record) set_aside(field, record) end

function marks.x() end

-- sound reports whether an entry with a record can be read as far as a pop reads it before it takes the id.
local function sound(i, record)
  local form = string.byte(record, 1)
  if form == 97 then return #record >= 10 end
  if form == 101 then return #record >= 16 end
  if not head_if(record) then return false end
  return not crowds[i] or ARGV[at[i] + 4] ~= '0'
end

-- take takes item i, and returns the code of the answer if it cannot.
local function take(i)
  local id, kind, score, data = ARGV[at[i]], kinds[i], string.sub(ARGV[at[i] + 1], 2), ARGV[at[i] + 2]
  weigh(1, #data)
  if marks[kind] then return marks[kind](id, score, data) end
  if not sound(i, data) then return set_aside((kind == 'm' and 'morgue:' or 'jobs:') .. id, data) end
  if kind == 'm' then
    if not crowds[i] and not readable(data) then return set_aside('morgue:' .. id, data) end
    return take_buried(i, score)
  end
  local record = records[id]
  if crowds[i] or record and record ~= 'x' then
    flush()
    if not crowds[i] and not readable(data) then return set_aside('jobs:' .. id, data) end
    return join(i, kind, score)
  end
  records[id] = data
  collect(KEY.jobs, id, data)
  place(id, kind, score, data, record)
end

local items, code = 0, nil
for i = 1, n do
  if i > read then read_on() end
  local first, total, count = 0, 1, 1
  if crowds[i] then first, total, count = tonumber(ARGV[at[i] + 3]), tonumber(ARGV[at[i] + 4]), tonumber(ARGV[at[i] + 5]) end
  if number > taken and first > done then
    code = 'GAP'
    break
  end
  if number > taken and (total == 0 or first + count > done) then
    if marks[kinds[i]] then flush() end
    code = take(i)
    if code then break end
    if first + count >= total then
      taken, done, base = number, 0, 0
    else
      done = first + count
    end
  end
  if first + count >= total then number = number + 1 end
  items = items + 1
  if enough() then break end
end
flush()
redis.call('HSET', KEY.from, source, ARGV[3] .. string.format(' %.0f %.0f %.0f', taken, done, base) .. ended)
if not is_closed and items > 0 then redis.call('PUBLISH', ARGV[5], '0') end
if code == 'GAP' and items > 0 then code = nil end -- the next call says so
return {code or 'OK', code == 'GAP' and taken or items, code and ARGV[at[items + 1]] or ''}
