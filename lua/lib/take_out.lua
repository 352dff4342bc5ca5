-- Included after lib/claimed.lua, or after a script sets `claim` and `claim_key` as it does: takes ids
-- out of a flight.
--
-- The flight list holds the ids of all open flights of the shard, in the order of their pops. Field
-- #<number> of the claim says how many of them belong to that flight. So a flight is a stretch of the
-- list, its end costs one LPOP, and no id carries the number of its flight.

-- stretch returns the place of a flight in the list: the number of entries before it, and its length.
local function stretch(number)
  local size = tonumber(claim['#' .. number])
  if not size then return 0, 0 end
  local before, n = 0, tonumber(number)
  for field, value in pairs(claim) do
    if string.byte(field, 1) == 35 and tonumber(string.sub(field, 2)) < n then before = before + tonumber(value) end
  end
  return before, size
end

-- shrink stores the new length of a flight.
local function shrink(number, size)
  if size > 0 then
    claim['#' .. number] = tostring(size)
    redis.call('HSET', claim_key, '#' .. number, size)
  else
    claim['#' .. number] = nil
    redis.call('HDEL', claim_key, '#' .. number, '@' .. number)
  end
end

-- sweep does the rest of take_out, for the ids from index i on. It reads the flight once. It sets each
-- entry that it takes to '', which costs no walk through the list, and then removes all such entries in
-- one walk. No id is ''. It returns how many ids it took.
local function sweep(flight_key, before, size, ids, i, taken)
  local at = {}
  for k, id in ipairs(redis.call('LRANGE', flight_key, before, before + size - 1)) do at[id] = before + k - 1 end
  local n = 0
  for k = i, #ids do
    local place = at[ids[k]]
    if place then
      if n == 0 then redis.call('HDEL', claim_key, '') end -- the first write needs no memory: see lease.lua
      redis.call('LSET', flight_key, place, '')
      at[ids[k]] = nil
      n = n + 1
      taken[#taken + 1] = ids[k]
    end
  end
  if n > 0 then redis.call('LREM', flight_key, n, '') end
  return n
end

-- most_walked is the number of entries that take_out may walk over before it sweeps. Ids that come in
-- the order of their flight are at its head. Each other id costs a walk, and Redis serves no other
-- client meanwhile.
local most_walked = 4000

-- take_out removes ids from this flight, and returns the ids that were in it. So a late or repeated
-- request takes none. The records stay in jobs, and the caller decides about them. The answer of a
-- handler ends the quarantine of its ids; without an answer the caller passes nil for crashes_key.
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

-- take_out_all does the same for all ids of a flight.
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
