-- Included by other scripts: ids with many payloads.
--
-- A record of many payloads would be copied whole by every push. Past 32 payloads or
-- 4 KiB they move to two structures that all ids of the shard share, so that a push
-- costs the same however many payloads wait:
--   spill   ZSET, all scores 0: "w<len id>:<id>:" .. key .. payload, in the order in which a handler gets them (I3)
--   spillx  HASH "w<len id>:<id>:" .. bare payload -> key: is it waiting, and where in that order
-- "w" is the set of waiting (or parked) payloads, "m" that of the morgue.
--
-- A key is the payload's score (rank in lib/record.lua), then its place among equal scores, 12
-- digits. What is pushed goes behind the middle, what was pushed before all that is there goes
-- before it; the record's next is larger than the distance of any place from the middle.
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
--   event                        what moves
--   push of an equal payload     nothing, or its member to a smaller score
--   push of another one          one member, one field, the head
--   pop                          a piece of the lowest into the record of the flight; the rest
--                                waits behind it, as parked
--   ack                          the flight's record; what is parked becomes the job
--   retry, return, seizure       the piece back before the rest: places below those there are
--   bury                         what the flight has into "m"; the morgue's record counts it
--
-- No script moves all of such a set at once, for Redis serves no other client meanwhile: it moves a
-- piece, the lowest first. A flight takes one piece of an id, and the rest waits as if it had been
-- pushed during the flight.
local spill_count, spill_bytes = 32, 4096
local piece_count, piece_bytes = 2000, 1048576
local moved_count = piece_count / 2 -- of a piece that goes from one set to another: twice the work
local spill_middle = 500000000000
local spill_chunk = 400 -- arguments of a command, and twice that: the stack of the embedded Redis has 5,120 places

local function spill_prefix(space, id) return space .. #id .. ':' .. id .. ':' end

-- spill_range bounds the members with a prefix: what follows its last character, a colon, may be
-- any byte.
local function spill_range(prefix) return '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';' end

local function in_chunks(list, width, call)
  for i = 1, #list, spill_chunk * width do
    call(unpack(list, i, math.min(#list, i + spill_chunk * width - 1)))
  end
end

local function spill_key(ranked_score, place) return ranked_score .. string.format('%012.0f', place) end

-- spill_lowest reads members of a set, lowest first: at most this many, and bytes of payloads, but
-- one.
local function spill_lowest(spill, prefix, bytes, most, room)
  local from, to = spill_range(prefix)
  if bytes <= room then return redis.call('ZRANGEBYLEX', spill, from, to, 'LIMIT', 0, most) end
  local found, size = {}, 0
  while #found < most do
    local few = redis.call('ZRANGEBYLEX', spill, from, to, 'LIMIT', 0, 4) -- they may be large
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

-- spill_take takes the lowest payloads out of a crowded job, of which only the head was read: one
-- piece, or as many as told. It returns them as {n, bytes, data, key}; job counts what is left.
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
  job.n = redis.call('ZLEXCOUNT', spill, from, to) -- counted, so that a record that is wrong ends too
  job.bytes = job.n == 0 and 0 or math.max(0, job.bytes - piece.bytes)
  return piece
end

-- spill_at gives the payload that has this key, as it is stored: it is equal to this one. Where it
-- is not, or there is none (damage: see audit_spill.lua), this one is what is known.
local function spill_at(spill, prefix, key, equal)
  local member = redis.call('ZRANGEBYLEX', spill, '[' .. prefix .. key, '+', 'LIMIT', 0, 1)[1]
  if not member or member == prefix .. key .. equal then return equal end
  local stored = string.sub(member, #prefix + 21)
  local same = string.sub(member, 1, #prefix + 20) == prefix .. key and bare(stored) == bare(equal)
  return same and stored or equal
end

-- spill_put adds payloads with their keys to a crowded job, of which only the head was read. Of
-- equal payloads the smaller score stays, and the headers of the one that was pushed before, which
-- of equal scores has its place: first says that these were.
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

-- keyed gives payloads, of a record that was parsed, places from here on, in their order.
local function keyed(some, place)
  local key = {}
  for i = 1, some.n do
    key[i] = spill_key(some.key and string.sub(some.key[i], 1, 8) or rank(some.score[i]), place + i - 1)
  end
  return {n = some.n, bytes = some.bytes, data = some.data, key = key}
end

-- spill_behind adds payloads that were pushed after all that are there.
local function spill_behind(spill, spillx, space, id, job, some)
  local place = spill_middle + job.next
  job.next = job.next + some.n
  spill_put(spill, spillx, space, id, job, keyed(some, place), false)
end

-- spill_open moves the payloads of a job that was parsed to the spill, as the first of their set;
-- their places begin at from.
local function spill_open(spill, spillx, space, id, job, from)
  local some = keyed(job, spill_middle + from)
  job.n, job.bytes, job.next, job.shift, job.data, job.score, job.key = 0, 0, from + some.n, 0, {}, {}, nil
  spill_put(spill, spillx, space, id, job, some, true)
  return job
end

local function spill_small(n, bytes) return n <= spill_count and bytes <= spill_bytes end

-- spill_pack makes the record of a job that waits, moving its payloads to the spill if they are
-- many. The space must hold nothing of this id. Places begin behind those of what is in flight:
-- from, or 1.
local function spill_pack(spill, spillx, space, id, job, from)
  if spill_small(job.n, job.bytes) then return pack(job) end
  return head('s', spill_open(spill, spillx, space, id, job, from or 1))
end

-- spill_from is where the places begin of what is pushed during the flight of this record.
local function spill_from(flying)
  return flying and string.byte(flying, 1) == 112 and head_of(flying).next or 1
end

-- spill_join makes the record of a job that waits again, of what came back from its flight, parsed,
-- and the record of what was pushed after it (nil: nothing). Retry count, error and due time are
-- those of the first; if it has no error, that of the second stays. from: as above.
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

-- spill_add adds one payload to a record (false: none yet). It returns the answer's character (see
-- push.lua) and the new record, or nil if the record did not change. flying: the record in flight,
-- if this one is parked.
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
