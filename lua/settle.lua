-- Included after claimed.lua: take ids out of a flight.
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
    redis.call('HSET', KEYS[1], '#' .. number, size)
  else
    claim['#' .. number] = nil
    redis.call('HDEL', KEYS[1], '#' .. number, '@' .. number)
  end
end

-- settle removes those of ids that are in this flight from it and returns them (a late or
-- repeated request finds none). Their records stay in jobs; the caller says what becomes of
-- them. crashes_key is nil when no handler answered; an answer ends an id's probation.
local function settle(flight_key, crashes_key, number, ids)
  local before, size = stretch(number)
  local taken = {}
  for i = 1, #ids do
    if size == 0 then break end
    local place = redis.call('LPOS', flight_key, ids[i])
    if place and place >= before and place < before + size then
      redis.call('LREM', flight_key, 1, ids[i])
      size = size - 1
      taken[#taken + 1] = ids[i]
    end
  end
  if #taken > 0 then
    shrink(number, size)
    if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(taken)) end
  end
  return taken
end

-- settle_all does the same for all that is left of a flight.
local function settle_all(flight_key, crashes_key, number)
  local before, size = stretch(number)
  if size == 0 then return {} end
  if before > 0 then
    return settle(flight_key, crashes_key, number, redis.call('LRANGE', flight_key, before, before + size - 1))
  end
  local taken = redis.call('LPOP', flight_key, size)
  shrink(number, 0)
  if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(taken)) end
  return taken
end
