-- Included by other scripts: ids with many payloads.
--
-- Every push would copy the whole record of an id with many payloads. Past 32 payloads or 4 KiB the
-- payloads move to two keys that all ids of the shard share. So a push costs the same however many
-- payloads wait:
--   spill   ZSET, all scores 0: "w<len id>:<id>:" .. key .. payload, in the order of handling (I3)
--   spillx  HASH "w<len id>:<id>:" .. bare payload -> key: whether a payload waits, and at which place
-- "w" marks waiting and parked payloads, "m" those of the morgue.
--
-- A key is the payload's score (rank in lib/record.lua) and then, in 12 digits, its place among equal
-- scores. Places begin at a middle. A pushed payload gets a place behind the middle. A payload that
-- was pushed before all others of the set, because it comes back from a flight or from the morgue, or
-- is imported, gets a place before the middle. The record's next is larger than the distance of any place from the middle.
--
-- Id "a" has payloads x (score 2, pushed first), y (score 1), z (score 2); M is the middle:
--
--   jobs    a -> "s-1 <due> 3 3 0 3 0"                the head alone (lib/record.lua): never
--                                                     failed, 3 payloads, 3 bytes, next 3
--   spill   w1:a:<rank 1><M+1>y                       one order: score, then place ...
--           w1:a:<rank 2><M+0>x
--           w1:a:<rank 2><M+2>z                       ... read lowest first by a pop
--   spillx  w1:a:x -> <rank 2><M+0>                   is x waiting, and where?
--           w1:a:y -> <rank 1><M+1>   w1:a:z -> <rank 2><M+2>
--
--   event                        change
--   push of an equal payload     none, or its member moves to a smaller score
--   push of another payload      one member and one field more; the head changes
--   pop                          the lowest payloads, a piece, move to the record of the flight; the
--                                rest is parked
--   ack                          the record of the flight ends; the parked rest becomes the job
--   retry, return, seizure       the piece comes back at places before those of the rest
--   bury                         the piece moves to "m"; the record in the morgue counts it
--
-- Redis serves no other client while a script runs. So no script moves a whole set. It moves a piece
-- with the lowest payloads. A flight takes one piece of an id, and the rest waits as if it had been
-- pushed during the flight.
local spill_count, spill_bytes = 32, 4096
local piece_count, piece_bytes = 2000, 1048576
local moved_count = piece_count / 2 -- for a move from one set to another, which is twice the work
local spill_middle = 500000000000
local spill_chunk = 400 -- members per command; the stack of the embedded Redis has 5,120 places

local function spill_prefix(space, id) return space .. #id .. ':' .. id .. ':' end

-- spill_range returns the bounds of all members with a prefix. The byte after the prefix may have any
-- value.
local function spill_range(prefix) return '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';' end

local function in_chunks(list, width, call)
  for i = 1, #list, spill_chunk * width do
    call(unpack(list, i, math.min(#list, i + spill_chunk * width - 1)))
  end
end

local function spill_key(ranked_score, place) return ranked_score .. string.format('%012.0f', place) end

-- spill_lowest reads the lowest members of a set: at most `most` members and `room` bytes of payloads,
-- but at least one member.
local function spill_lowest(spill, prefix, bytes, most, room)
  local from, to = spill_range(prefix)
  if bytes <= room then return redis.call('ZRANGEBYLEX', spill, from, to, 'LIMIT', 0, most) end
  local found, size = {}, 0
  while #found < most do
    local few = redis.call('ZRANGEBYLEX', spill, from, to, 'LIMIT', 0, 4) -- members may be large
    for i = 1, #few do
      size = size + #few[i] - #prefix - 20
      if size > room and #found > 0 or #found == most then return found end
      found[#found + 1] = few[i]
    end
    if #few < 4 then break end
    from = '(' .. few[4]
  end
  return found
end

-- spill_take takes the lowest payloads out of a crowded job, whose head was read. It takes a piece, or
-- at most `most` payloads and `room` bytes. It returns them as {n, bytes, data, key}, and updates the
-- counts of job.
local function spill_take(spill, spillx, space, id, job, most, room)
  local prefix = spill_prefix(space, id)
  local members = spill_lowest(spill, prefix, job.bytes, most or piece_count, room or piece_bytes)
  local piece = {n = #members, bytes = 0, data = {}, key = {}}
  local fields, start = {}, #prefix + 1
  for i = 1, #members do
    local data = string.sub(members[i], start + 20)
    piece.key[i], piece.data[i] = string.sub(members[i], start, start + 19), data
    piece.bytes = piece.bytes + #data
    fields[i] = prefix .. bare(data)
  end
  if piece.n == 0 then
    job.n, job.bytes = 0, 0
    return piece
  end
  local from, to = spill_range(prefix)
  in_chunks(fields, 1, function(...) redis.call('HDEL', spillx, ...) end)
  redis.call('ZREMRANGEBYLEX', spill, from, '[' .. members[#members])
  job.n = redis.call('ZLEXCOUNT', spill, from, to) -- counted, so that a job with a wrong count ends too
  job.bytes = job.n == 0 and 0 or math.max(0, job.bytes - piece.bytes)
  return piece
end

-- spill_at returns the stored payload with this key. It must equal the payload `equal`; if the set is
-- damaged (see audit_spill.lua), `equal` itself is returned.
local function spill_at(spill, prefix, key, equal)
  local member = redis.call('ZRANGEBYLEX', spill, '[' .. prefix .. key, '+', 'LIMIT', 0, 1)[1]
  if not member or member == prefix .. key .. equal then return equal end
  local stored = string.sub(member, #prefix + 21)
  local same = string.sub(member, 1, #prefix + 20) == prefix .. key and bare(stored) == bare(equal)
  return same and stored or equal
end

-- spill_put adds payloads with their keys to a crowded job, whose head was read. Equal payloads become
-- a single payload with the smaller score, and with the headers of the payload that was pushed first.
-- If the scores are equal it keeps the place of that payload, too. first says that the added payloads
-- were pushed first.
local function spill_put(spill, spillx, space, id, job, some, first)
  local prefix = spill_prefix(space, id)
  local names, there, members, fields, gone = {}, {}, {}, {}, {}
  for i = 1, some.n do names[i] = prefix .. bare(some.data[i]) end
  in_chunks(names, 1, function(...)
    for _, v in ipairs(redis.call('HMGET', spillx, ...)) do there[#there + 1] = v end
  end)
  for i = 1, some.n do
    local data, key, old = some.data[i], some.key[i], there[i]
    local was
    if old and #old == 20 then
      local x, y = ranked(key), ranked(old)
      if x > y or x == y and not first then key = old end
      if key ~= old or first then
        was = spill_at(spill, prefix, old, data)
        if not first then data = was end
        if key ~= old or data ~= was then gone[#gone + 1] = prefix .. old .. was end
        job.bytes = job.bytes + #data - #was
      end
    else
      job.n, job.bytes = job.n + 1, job.bytes + #data
    end
    if key ~= old or was and data ~= was then
      local k = #members
      members[k + 1], members[k + 2] = 0, prefix .. key .. data
      fields[k + 1], fields[k + 2] = names[i], key
    end
  end
  in_chunks(gone, 1, function(...) redis.call('ZREM', spill, ...) end)
  in_chunks(members, 2, function(...) redis.call('ZADD', spill, ...) end)
  in_chunks(fields, 2, function(...) redis.call('HSET', spillx, ...) end)
end

-- keyed gives the payloads of a parsed record keys, with places from `place` on in their order.
local function keyed(some, place)
  local key = {}
  for i = 1, some.n do
    key[i] = spill_key(some.key and string.sub(some.key[i], 1, 8) or rank(some.score[i]), place + i - 1)
  end
  return {n = some.n, bytes = some.bytes, data = some.data, key = key}
end

-- spill_behind adds payloads that were pushed after all others of the set.
local function spill_behind(spill, spillx, space, id, job, some)
  local place = spill_middle + job.next
  job.next = job.next + some.n
  spill_put(spill, spillx, space, id, job, keyed(some, place), false)
end

-- spill_open moves the payloads of a parsed job to the spill, as the first of their set. Their places
-- begin at from.
local function spill_open(spill, spillx, space, id, job, from)
  local some = keyed(job, spill_middle + from)
  job.n, job.bytes, job.next, job.shift, job.data, job.score, job.key = 0, 0, from + some.n, 0, {}, {}, nil
  spill_put(spill, spillx, space, id, job, some, true)
  return job
end

local function spill_small(n, bytes) return n <= spill_count and bytes <= spill_bytes end

-- spill_pack returns the record of a waiting job, and moves its payloads to the spill if they are
-- many. The spill must have no payloads of this id in that space. Places begin at from (default 1),
-- which is behind the places of the payloads in flight.
local function spill_pack(spill, spillx, space, id, job, from)
  if spill_small(job.n, job.bytes) then return pack(job) end
  return head('s', spill_open(spill, spillx, space, id, job, from or 1))
end

-- spill_from returns the first place for payloads that are pushed during the flight of this record.
local function spill_from(flying)
  return flying and string.byte(flying, 1) == 112 and head_of(flying).next or 1
end

-- spill_join returns the record of a job that comes back from its flight. job is the parsed record of
-- the flight, and later the record of the payloads that were pushed during it, or nil. Retry count,
-- error and due time are those of job; if job has no error, the error of later stays. For from see
-- spill_pack.
local function spill_join(spill, spillx, space, id, job, later, from)
  local crowded = later and string.byte(later, 1) == 115
  local other = later and parse(later)
  if other and job.err == '' then job.err = other.err end
  if not crowded and not job.key then
    return spill_pack(spill, spillx, space, id, other and merge(job, other) or job, from)
  end
  local all = {retry = job.retry, at = job.at, since = job.since, group = job.group, err = job.err, n = 0, bytes = 0, next = job.next, shift = 0}
  local some = job
  if crowded then
    all.n, all.bytes, all.next = other.n, other.bytes, math.max(other.next, job.next) + job.n
    some = keyed(job, spill_middle - all.next + 1)
  end
  spill_put(spill, spillx, space, id, all, some, true)
  if other and not crowded then spill_behind(spill, spillx, space, id, all, other) end
  return head('s', all)
end

-- spill_add adds a payload to a record, which is false for a new job. It returns the character of the
-- answer (see push.lua) and the new record, or nil if the record stays. If the record is parked,
-- flying is the record in flight.
local function spill_add(spill, spillx, space, id, rec, payload, score, at, most, most_bytes, flying)
  if not rec then
    if most < 1 then return '2' end
    if #payload > most_bytes then return '3' end
    return '0', spill_pack(spill, spillx, space, id, single(at, score, payload), spill_from(flying))
  end
  local job = parse(rec)
  if string.sub(rec, 1, 1) ~= 's' then
    local i = find(job, payload)
    if i then
      if not lower(score, job.score[i]) then return '1' end
      lessen(job, i, score)
      return '1', pack(job)
    end
    if job.n >= most then return '2' end
    if job.bytes + #payload > most_bytes then return '3' end
    job.n = job.n + 1
    job.data[job.n], job.score[job.n] = payload, score
    job.bytes, job.next = job.bytes + #payload, job.n + 1
    return '0', spill_pack(spill, spillx, space, id, job, spill_from(flying))
  end
  local prefix = spill_prefix(space, id)
  local field = prefix .. bare(payload)
  local there = redis.call('HGET', spillx, field)
  if there and #there == 20 then
    if score + 0 < ranked(there) then
      local key, was = spill_key(rank(score), spill_middle + job.next), spill_at(spill, prefix, there, payload)
      job.next = job.next + 1
      redis.call('ZREM', spill, prefix .. there .. was)
      redis.call('ZADD', spill, 0, prefix .. key .. was)
      redis.call('HSET', spillx, field, key)
      return '1', head('s', job)
    end
    return '1'
  end
  if job.n >= most then return '2' end
  if job.bytes + #payload > most_bytes then return '3' end
  local key = spill_key(rank(score), spill_middle + job.next)
  redis.call('ZADD', spill, 0, prefix .. key .. payload)
  redis.call('HSET', spillx, field, key)
  job.n, job.bytes, job.next = job.n + 1, job.bytes + #payload, job.next + 1
  return '0', head('s', job)
end
