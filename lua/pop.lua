-- pop: acknowledge done jobs and take the next flight, in one round trip.
--
--#keys claim jobs ready due flight parked crashes count urgent stale retry suspects spill spillx late postponed
-- ARGV  1 instance  2 fence  3 number of this pop  4 maximum number of ids  5 maximum bytes of records
--       6 max_crashes  7 '1' if this pop holds the node's quarantine slot, '' if it wants no id in quarantine,
--       else '0'  8 number of arguments of the acks
--       then acks as in ack.lua
-- Returns {now us, open flights "n n …", due time of the next scheduled or failed job or '', ids still
--       ready, quarantine, id, record, …}
--       quarantine: ''; 'taken': the flight is a single id in quarantine; 'wait': an id in quarantine is in flight or
--       next, and nothing else runs until the open flights have ended; 'slot': an id in quarantine waits for
--       the node's slot; 'passed': the script found only entries of deleted jobs, as many as it may pass
--       over, and the caller should pop again.
-- The number of a pop is the number of the last pop plus 1. If it is that of the last pop, the script
-- returns the ids of that flight without an outcome, or 'passed' if all have theirs. A lower number returns
-- no ids. A number beyond the next is an error. So a repeated request pops nothing twice.
-- A flight has at most 2,000 payloads and ARGV[5] bytes, except that it may have a single larger payload.
-- Of a crowded id the flight takes a piece, and the rest is parked (lib/spill.lua).
-- Errors: FENCED holder fence; NUMBER last; RECOVERING, while flights of an earlier claim are still to be put back by resume.lua
-- Keeps I1 (an id in flight is in no list but flight), I2 (the record stays until its ack).
--#include claimed
local number, most, room = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if claim.recover then return redis.error_reply('RECOVERING ' .. claim.recover) end
local last = tonumber(claim.pop or 0)
if number > last + 1 then return redis.error_reply('NUMBER ' .. last) end

-- Most shards are quiet: they have no scheduled, failed, postponed, parked or crowded jobs, and no ids in
-- quarantine or urgent ids. For these a single command replaces ten.
local quiet = redis.call('EXISTS', KEY.due, KEY.parked, KEY.crashes, KEY.retry, KEY.suspects, KEY.spill, KEY.late, KEY.postponed, KEY.urgent) == 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {string.format('%.0f', now), '', '', 0, ''}

-- note records in the claim how many ids this pop has taken.
local function note(ids)
  local fields = {'pop', ARGV[3]}
  if ids > 0 then
    claim['#' .. ARGV[3]] = ids
    fields[3], fields[4] = '#' .. ARGV[3], ids
    fields[5], fields[6] = '@' .. ARGV[3], answer[1]
  end
  if claim.max_crashes ~= ARGV[6] then
    fields[#fields + 1] = 'max_crashes'
    fields[#fields + 1] = ARGV[6]
  end
  redis.call('HSET', KEY.claim, unpack(fields))
end

-- The usual pop of a drain comes first. The rest of the script would make it about a tenth slower.
-- In a usual pop the shard is quiet, no flight is open except a flight that this request acks
-- as a whole, and each record has a single payload. If an id does not fit, the ids that are already popped
-- are left to the rest of the script.
local acked = ARGV[8] == '2' and ARGV[10] == '0' and tonumber(claim['#' .. ARGV[9]])
local usual = quiet and number > last and (acked or ARGV[8] == '0')
if usual then
  local open = acked and -1 or 0
  for field in pairs(claim) do
    if string.byte(field, 1) == 35 then open = open + 1 end
  end
  usual = open == 0
end
local flew, looked, size = 0, 0, 0 -- ids that the usual pop took, entries asked for, bytes of the flight
local ids, records
if usual then
  if acked then
    local done = redis.call('LPOP', KEY.flight, acked)
    redis.call('HDEL', KEY.claim, '#' .. ARGV[9], '@' .. ARGV[9])
    claim['#' .. ARGV[9]] = nil
    redis.call('HDEL', KEY.jobs, unpack(done))
    redis.call('HINCRBY', KEY.count, 'processed', #done)
  end
  repeat
    -- A record may have 16 KiB, and Redis copies everything that a command reads.
    local few = math.min(128, most - looked)
    ids = redis.call('LPOP', KEY.ready, few)
    if not ids then break end
    looked = looked + few
    records = redis.call('HMGET', KEY.jobs, unpack(ids))
    local a, bytes = 4 + 2 * flew, size
    for i = 1, #ids do
      local record = records[i]
      if not record or record == 'x' then
        usual = false
        break
      end
      local long = #record
      bytes = bytes + long
      if long > 64 then
        local form = string.byte(record, 1)
        if form == 106 or form == 115 or bytes > room then
          usual = false
          break
        end
      end
      a = a + 2
      answer[a], answer[a + 1] = ids[i], record
    end
    if not usual or bytes > room then
      usual = false
      for k = #answer, 6 + 2 * flew, -1 do answer[k] = nil end
      break
    end
    redis.call('RPUSH', KEY.flight, unpack(ids))
    flew, size = flew + #ids, bytes
  until #ids < few or looked == most
  if usual then
    note(flew)
    if flew > 0 then answer[2] = ARGV[3] end
    answer[4] = flew == looked and redis.call('LLEN', KEY.ready) or 0
    return answer
  end
end

--#include take_out
--#include urgent
--#include enqueue
--#include finish

if not ids and tonumber(ARGV[8]) > 0 then
  finish(KEY.jobs, KEY.ready, KEY.due, KEY.flight, not quiet and KEY.parked or nil, not quiet and KEY.crashes or nil, KEY.count,
    9, 8 + tonumber(ARGV[8]))
end
local plain, crowded, stale, late, postponed = quiet, false, false, false, false
if not plain then
  plain = redis.call('EXISTS', KEY.due, KEY.retry, KEY.suspects, KEY.crashes) == 0
  if redis.call('EXISTS', KEY.spill, KEY.stale, KEY.late, KEY.postponed) > 0 then
    crowded, stale = redis.call('EXISTS', KEY.spill) == 1, redis.call('EXISTS', KEY.stale) == 1
    late, postponed = redis.call('EXISTS', KEY.late) == 1, redis.call('EXISTS', KEY.postponed) == 1
  end
end

-- alone reports whether the id in flight is in quarantine. Such an id has crashes and is not among the suspects.
local function alone()
  return not plain and redis.call('HLEN', KEY.crashes) > redis.call('LLEN', KEY.suspects)
end

local function open_flights()
  local open = {}
  for field in pairs(claim) do
    if string.byte(field, 1) == 35 then open[#open + 1] = string.sub(field, 2) end
  end
  return open
end

local function reply()
  answer[2] = table.concat(open_flights(), ' ')
  answer[4] = redis.call('LLEN', KEY.ready) + (urging and redis.call('ZCOUNT', KEY.urgent, 0, '+inf') or 0)
  if plain then return answer end
  local first
  for _, key in ipairs({KEY.due, KEY.retry}) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if at and (not first or at < first) then first = at end
  end
  if first then answer[3] = string.format('%.0f', first) end
  return answer
end

if number <= last then
  if number < last then return reply() end
  if not claim['#' .. ARGV[3]] then
    answer[5] = 'passed' -- the script does not remember the first answer; to pop again is right in all cases
    return reply()
  end
  if alone() then answer[5] = 'taken' end
  local before, size = stretch(ARGV[3])
  for _, id in ipairs(redis.call('LRANGE', KEY.flight, before, before + size - 1)) do
    answer[#answer + 1] = id
    answer[#answer + 1] = redis.call('HGET', KEY.jobs, id)
  end
  return reply()
end

-- promote appends jobs whose time has come to the ready list, in order of their due times. If the list still has
-- an old entry of the id (see push.lua), that entry serves the job, because no id may have two entries. Urgent ids go to
-- their own line.
local function promote()
  local found = {}
  for _, key in ipairs({KEY.due, KEY.retry}) do
    local flat = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, most)
    for i = 1, #flat, 2 do found[#found + 1] = {key = key, id = flat[i], at = tonumber(flat[i + 1])} end
  end
  if #found == 0 then return end
  table.sort(found, function(x, y)
    if x.at ~= y.at then return x.at < y.at end
    return x.id < y.id
  end)
  local moved = {[KEY.due] = {}, [KEY.retry] = {}}
  local all = {}
  for i = 1, math.min(#found, most) do
    local list = moved[found[i].key]
    list[#list + 1] = found[i].id
    all[i] = found[i].id
  end
  for key, list in pairs(moved) do
    if #list > 0 then redis.call('ZREM', key, unpack(list)) end
  end
  local failed = {}
  for _, id in ipairs(moved[KEY.retry]) do
    failed[#failed + 1] = id
    failed[#failed + 1] = 1
  end
  if #failed > 0 then
    late = true
    redis.call('HSET', KEY.late, unpack(failed))
  end
  if urging then
    local others = {}
    for i = 1, #all do
      if redis.call('ZSCORE', KEY.urgent, all[i]) then
        seat(all[i], found[i].at)
      else
        others[#others + 1] = all[i]
      end
    end
    all = others
  end
  if stale and #all > 0 then
    local left, fresh = redis.call('HMGET', KEY.stale, unpack(all)), {}
    redis.call('HDEL', KEY.stale, unpack(all))
    for i = 1, #all do
      if not left[i] then fresh[#fresh + 1] = all[i] end
    end
    all = fresh
  end
  if #all > 0 then redis.call('RPUSH', KEY.ready, unpack(all)) end
end

-- wait ends a pop that takes no ids. A Redis that is out of memory refuses a script if its first write may need
-- memory, and such a pop must be answered too. So the first write deletes a field that does not exist.
local function wait()
  answer[5] = 'wait'
  redis.call('HDEL', KEY.claim, '')
  return true
end

-- suspect takes the first id in quarantine, alone. It returns whether the pop ends here, and the id.
local function suspect()
  if alone() then return wait() end
  local id = ARGV[7] ~= '' and redis.call('LINDEX', KEY.suspects, 0)
  if not id then return false end
  local crashes = tonumber(redis.call('HGET', KEY.crashes, id) or 0)
  if crashes > 0 and ARGV[7] ~= '1' then
    answer[5] = 'slot'
    return false
  end
  if open_flights()[1] then return wait() end
  answer[5] = 'taken'
  redis.call('LPOP', KEY.suspects)
  return true, id
end

-- crowds returns the functions for records of many payloads. It makes them when the first such record comes,
-- because to make them costs more than all the rest of a small pop.
local made
local function crowds()
  if made then return made end
  --#include record
  --#include sound
  --#include spill

  -- piece takes a piece of a crowded id out of the spill. It parks the rest as a job without retries, which keeps
  -- its place in time. A record that cannot be read stays, and the owner of the shard sets it aside.
  local function piece(id, record)
    local sound, job = pcall(parse, record)
    if not sound then return record end
    -- If a repair has parked payloads, the piece takes all, because a parked rest would overwrite them.
    local most = redis.call('HEXISTS', KEY.parked, id) == 1 and 1e9 or nil
    local piece = spill_take(KEY.spill, KEY.spillx, 'w', id, job, most, most)
    piece.retry, piece.at, piece.since, piece.group, piece.err, piece.next = job.retry, job.at, job.since, job.group, job.err, job.next
    record = pack(piece)
    redis.call('HSET', KEY.jobs, id, record)
    if job.n > 0 then
      -- It has waited as long as the piece. It gets a later time by 1 us, which gives it a place of its own in the
      -- line: see line.lua.
      job.at = (job.since or job.at) + 1
      job.retry, job.err, job.since = -1, '', nil
      redis.call('HSET', KEY.parked, id, head('s', job))
    end
    return record
  end

  -- burden returns the number of payloads and bytes that a record adds to a flight. A record without a head counts
  -- as one payload.
  local function burden(record)
    local job = head_if(record)
    if not job then return 1, #record end
    return math.min(job.n, piece_count), string.byte(record, 1) == 115 and math.min(job.bytes, piece_bytes) or #record
  end

  made = {piece = piece, burden = burden}
  return made
end

-- unmark removes the marks of ids whose entries have left the ready list.
local function unmark(...)
  if late then redis.call('HDEL', KEY.late, ...) end
  if postponed then redis.call('ZREM', KEY.postponed, ...) end
end

-- note_departure notes that an urgent id is in flight, and whether some of its payloads had to stay.
local function note_departure(id)
  redis.call('ZADD', KEY.urgent, 'XX', redis.call('HEXISTS', KEY.parked, id) == 1 and -2 or -1, id)
end

-- fly adds an id to this flight.
local flown = {}
local function fly(id, record)
  if string.byte(record, 1) == 115 then record = crowds().piece(id, record) end
  answer[#answer + 1] = id
  answer[#answer + 1] = record
  flown[#flown + 1] = id
end

-- take pops a number of entries of the ready list, and adds them to the flight. It returns whether the flight may
-- take more. Entries of deleted jobs are dropped.
local most_payloads = 2000
local left_ids, left_records = ids, records -- popped already
local extra = 0 -- payloads of the flight minus its ids
local function take(few)
  local ids, records = left_ids, left_records
  left_ids = nil
  if not ids then
    ids = redis.call('LPOP', KEY.ready, few)
    if not ids then return false end
    records = redis.call('HMGET', KEY.jobs, unpack(ids))
  end
  local left = stale and redis.call('HMGET', KEY.stale, unpack(ids))
  local answer, flown, crowded, room, bytes, more = answer, flown, crowded, room, size, extra
  local marked = late or postponed
  local a, f = #answer, #flown
  for i = 1, #ids do
    local record = records[i]
    if left and left[i] then
      -- The entry belongs to an earlier job of the id. The job itself is scheduled or in quarantine and keeps its marks.
      redis.call('HDEL', KEY.stale, ids[i])
      ids[i] = ''
    elseif record == 'x' then
      redis.call('HDEL', KEY.jobs, ids[i])
      redis.call('HINCRBY', KEY.count, 'tombs', -1)
    elseif record then
      local was, form = bytes, nil
      bytes = bytes + #record
      if crowded or #record > 64 then
        form = string.byte(record, 1)
        if form == 106 or form == 115 then
          local n, weight = crowds().burden(record)
          bytes, more = was + weight, more + n - 1
        end
      end
      if (bytes > room or flew + f + more >= most_payloads) and flew + f > 0 then
        local back = {}
        for k = #ids, i, -1 do back[#back + 1] = ids[k] end
        redis.call('LPUSH', KEY.ready, unpack(back))
        if marked and i > 1 then unmark(unpack(ids, 1, i - 1)) end
        return false
      end
      if crowded and form == 115 then record = crowds().piece(ids[i], record) end
      answer[a + 1], answer[a + 2] = ids[i], record
      a, f = a + 2, f + 1
      flown[f] = ids[i]
    end
  end
  size, extra = bytes, more
  if marked then unmark(unpack(ids)) end
  return true
end

-- take_urgent adds urgent ids to the flight. It returns whether the flight may take other ids.
local function take_urgent()
  redis.call('HDEL', KEY.claim, '') -- the first write needs no memory: see lease.lua
  local few = math.min(250, most)
  local ids = redis.call('ZRANGEBYSCORE', KEY.urgent, 0, '+inf', 'LIMIT', 0, few)
  for i = 1, #ids do
    local id = ids[i]
    local record = redis.call('HGET', KEY.jobs, id)
    if not record or record == 'x' then -- damage, which a check reports
      redis.call('ZREM', KEY.urgent, id)
    else
      local form, n, weight = string.byte(record, 1), 1, #record
      if form == 106 or form == 115 then n, weight = crowds().burden(record) end
      if #flown > 0 and (size + weight > room or #flown + extra + n > most_payloads) then return false end
      size, extra = size + weight, extra + n - 1
      fly(id, record)
      note_departure(id)
      unmark(id)
    end
  end
  looked = #flown
  return #ids < few
end

local ends, id = false, nil
if not plain then
  promote()
  ends, id = suspect()
end
if id then
  local record = redis.call('HGET', KEY.jobs, id)
  redis.call('HDEL', KEY.late, id)
  redis.call('ZREM', KEY.postponed, id)
  if record == 'x' then
    redis.call('HDEL', KEY.jobs, id)
    redis.call('HDEL', KEY.crashes, id)
    redis.call('HINCRBY', KEY.count, 'tombs', -1)
  elseif record then
    fly(id, record)
    if urging then note_departure(id) end
  end
elseif not ends and not (urging and not take_urgent()) then
  repeat
    local few = 0 -- popped already
    if not left_ids then
      few = math.min(128, most - looked % most)
      looked = looked + few
    end
  until not take(few) or looked % most == 0 and (flew + #flown > 0 or looked >= 1000)
  if flew + #flown == 0 and looked >= 1000 then answer[5] = 'passed' end
end
if #flown > 0 then redis.call('RPUSH', KEY.flight, unpack(flown)) end
note(flew + #flown)
return reply()
