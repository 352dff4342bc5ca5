-- Included after claimed.lua: take ids out of a flight.

local function distinct(ids)
  local seen, once = {}, {}
  for _, id in ipairs(ids) do
    if not seen[id] then seen[id], once[#once + 1] = true, id end
  end
  return once
end

-- settle removes those of ids that are in this flight from it and returns each once (a late
-- duplicate finds none). Their records stay in jobs; the caller says what becomes of them.
-- crashes_key is nil when no handler answered; an answer ends an id's probation.
local function settle(flight_key, crashes_key, number, ids)
  local held = claim['#' .. number]
  if not held or #ids == 0 then return {} end
  local now_in = redis.call('HMGET', flight_key, unpack(ids))
  local taken = ids
  for i = 1, #ids do
    if now_in[i] ~= number then
      taken = {}
      for k = 1, #ids do
        if now_in[k] == number then taken[#taken + 1] = ids[k] end
      end
      break
    end
  end
  if #taken == 0 then return taken end
  if redis.call('HDEL', flight_key, unpack(taken)) < #taken then taken = distinct(taken) end
  local left = held - #taken
  if left > 0 then
    claim['#' .. number] = tostring(left)
    redis.call('HSET', KEYS[1], '#' .. number, left)
  else
    claim['#' .. number] = nil
    redis.call('HDEL', KEYS[1], '#' .. number)
  end
  if crashes_key and redis.call('EXISTS', crashes_key) == 1 then redis.call('HDEL', crashes_key, unpack(taken)) end
  return taken
end
