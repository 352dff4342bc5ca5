-- Included after spill.lua: put what is in flight back to the head (I2).
-- Expects `claim` (fields of the claim), KEYS[1] claim, KEYS[2] jobs, KEYS[3] ready, KEYS[4] flight,
-- KEYS[5] parked, KEYS[6] crashes, KEYS[7] suspects, KEYS[8] spill, KEYS[9] spillx.

-- reunite merges what was parked during a flight into the record that was in flight, whose
-- retry count, error and due time win. It returns the record to store: a crowded one goes back
-- to the spill, or each push to it would copy it whole.
local function reunite(id, record)
  local parked = redis.call('HGET', KEYS[5], id)
  local readable, later
  if parked then readable, later = pcall(spill_load, KEYS[8], KEYS[9], 'w', id, parked) end
  if not readable then -- a damaged one stays where it is, for a repair
    if string.byte(record, 1) ~= 106 then return record end
    return spill_pack(KEYS[8], KEYS[9], 'w', id, parse(record))
  end
  local job = merge(parse(record), later)
  spill_drop(KEYS[8], KEYS[9], 'w', id, parked)
  redis.call('HDEL', KEYS[5], id)
  return spill_pack(KEYS[8], KEYS[9], 'w', id, job)
end

-- in_flight lists ids in flight in the order of their pops.
local function in_flight()
  local ids = redis.call('LRANGE', KEYS[4], 0, -1)
  local list = {}
  for i = 1, #ids do
    local record = redis.call('HGET', KEYS[2], ids[i])
    if record then list[#list + 1] = {id = ids[i], record = record} end
  end
  return list
end

-- recover empties all flights: ids on probation go to the head of suspects, the others to
-- the head of the ready list. `judge`, if given, sees every id first and may take it away.
-- A record that cannot be read goes back as it is, or the script would end half-way (I6).
local function recover(judge)
  local list = in_flight()
  local flights = {}
  for field in pairs(claim) do
    local first = string.byte(field, 1)
    if first == 35 or first == 64 then flights[#flights + 1] = field end
  end
  if #flights > 0 then redis.call('HDEL', KEYS[1], unpack(flights)) end
  redis.call('DEL', KEYS[4])
  for i = #list, 1, -1 do
    local job = list[i]
    if not judge or not pcall(parse, job.record) or not judge(job, #list) then
      local readable, record = pcall(reunite, job.id, job.record)
      if readable and record ~= job.record then redis.call('HSET', KEYS[2], job.id, record) end
      local suspect = redis.call('HEXISTS', KEYS[6], job.id) == 1
      redis.call('LPUSH', suspect and KEYS[7] or KEYS[3], job.id)
    end
  end
  return #list
end
