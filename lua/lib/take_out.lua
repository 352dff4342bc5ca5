-- Included after lib/claimed.lua, or where `claim` and `claim_key` are set as there: take ids out of
-- a flight.
--
-- The flight list holds the ids of all open flights of the shard in the order of their pops;
-- field #<number> of the claim says how many of them are of that flight. So a flight is a
-- stretch of the list, an ended one costs one LPOP, and no id needs a number of its own. Field
-- @<number> says when it was popped (us).

-- stretch gives a flight's place: how many entries stand before it, and how many it has.
local function stretch(number)
  local size = tonumber(claim['#' .. number])
  if not size then return 0, 0 end
  local before, n = 0, tonumber(number)
  for field, value in pairs(claim) do
    if string.byte(field, 1) == 35 and tonumber(string.sub(field, 2)) < n then before = before + tonumber(value) end
  end
  return before, size
end

-- shrink notes that a flight has lost ids.
local function shrink(number, size)
  if size > 0 then
    claim['#' .. number] = tostring(size)
    redis.call('HSET', claim_key, '#' .. number, size)
  else
    claim['#' .. number] = nil
    redis.call('HDEL', claim_key, '#' .. number, '@' .. number)
  end
end

-- sweep is the rest of take_out, from place i of ids on, with one look at the flight and one walk
-- through the list: it blanks what it takes, which costs no walk, and then removes all blanks. No
-- id is ''. Returns how many it took.
local function sweep(flight_key, before, size, ids, i, taken)
  local at = {}
  for k, id in ipairs(redis.call('LRANGE', flight_key, before, before + size - 1)) do at[id] = before + k - 1 end
  local n = 0
  for k = i, #ids do
    local place = at[ids[k]]
    if place then
      if n == 0 then redis.call('HDEL', claim_key, '') end -- a first write that cannot grow, for a Redis out of memory: see lease.lua
      redis.call('LSET', flight_key, place, '')
      at[ids[k]] = nil
      n = n + 1
      taken[#taken + 1] = ids[k]
    end
  end
  if n > 0 then redis.call('LREM', flight_key, n, '') end
  return n
end

-- Entries that take_out may walk over before it sweeps. Ids that come in the order of their flight
-- are at its head; each other one is a walk, and Redis serves no other client meanwhile.
local most_walked = 4000

-- take_out removes those of ids that are in this flight from it and returns them (a late or
-- repeated request finds none). Their records stay in jobs; the caller says what becomes of
-- them. crashes_key is nil when no handler answered; an answer ends an id's quarantine.
local function take_out(flight_key, crashes_key, number, ids)
  local before, size = stretch(number)
  local taken, walked = {}, 0
  for i = 1, #ids do
    if size == 0 then break end
    local place = redis.call('LPOS', flight_key, ids[i])
    if place and place >= before and place < before + size then
      redis.call('LREM', flight_key, 1, ids[i])
      size = size - 1
      taken[#taken + 1] = ids[i]
    end
    walked = walked + (place or before + size)
    if walked > most_walked then
      size = size - sweep(flight_key, before, size, ids, i + 1, taken)
      break
    end
  end
  if #taken > 0 then
    shrink(number, size)
    if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(taken)) end
  end
  return taken
end

-- take_out_all does the same for all that is left of a flight.
local function take_out_all(flight_key, crashes_key, number)
  local before, size = stretch(number)
  if size == 0 then return {} end
  if before > 0 then
    return take_out(flight_key, crashes_key, number, redis.call('LRANGE', flight_key, before, before + size - 1))
  end
  local taken = redis.call('LPOP', flight_key, size)
  shrink(number, 0)
  if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(taken)) end
  return taken
end
