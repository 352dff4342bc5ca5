-- Included after lib/spill.lua and lib/measure.lua: put what is in flight back to the head (I2), a
-- part of it per call. Expects `claim` (fields of the claim), KEY.claim, KEY.jobs, KEY.ready,
-- KEY.flight, KEY.parked, KEY.crashes, KEY.suspects, KEY.spill, KEY.spillx, KEY.late,
-- KEY.postponed, KEY.progress.
--
-- Field recover of the claim says that this has begun, why, and how many ids were in flight then:
-- "seize 36". While it is there no pop takes anything, so no pop sees a shard of which only a part
-- is back (I3); the owner by then, or the next one, goes on (resume.lua).

-- reunite merges what was parked during a flight into the job that was in flight, whose retry
-- count, error (if it has one) and due time win. It returns the record to store. One that is parked
-- and damaged stays where it is, for a repair.
local function reunite(id, job)
  local parked = redis.call('HGET', KEY.parked, id)
  if parked and not pcall(parse, parked) then parked = nil end
  local record = spill_join(KEY.spill, KEY.spillx, 'w', id, job, parked or nil)
  if parked then redis.call('HDEL', KEY.parked, id) end
  return record
end

-- back stores a job that was in flight as it waits now. A fresh one alone stays as it is.
local function back(id, record)
  local form = string.byte(record, 1)
  if (form == 97 or form == 101) and redis.call('HEXISTS', KEY.parked, id) == 0 then return end
  redis.call('HSET', KEY.jobs, id, reunite(id, parse(record)))
end

-- to_head lets a job wait at the head: of suspects if it is in quarantine, else of the ready list.
local function to_head(id, record)
  local suspect = redis.call('HEXISTS', KEY.crashes, id) == 1
  redis.call('LPUSH', suspect and KEY.suspects or KEY.ready, id)
  if has_failed(record) then redis.call('HSET', KEY.late, id, 1) end
  local since = since_of(record)
  if since then redis.call('ZADD', KEY.postponed, string.format('%.0f', since), id) end
end

-- recovery begins to take flights back, or goes on with what was begun. It returns the cause of the
-- beginning, and how many ids were in flight then; nil if there is nothing to do.
local function recovery(cause)
  redis.call('HDEL', KEY.claim, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua
  if not claim.recover then
    redis.call('DEL', KEY.progress)
    local n = redis.call('LLEN', KEY.flight)
    local open = n > 0
    for field in pairs(claim) do open = open or string.byte(field, 1) == 35 end
    if not open then return nil end
    claim.recover = cause .. ' ' .. n
    redis.call('HSET', KEY.claim, 'recover', claim.recover)
  end
  local cause, n = string.match(claim.recover, '^(%S+) (%d+)')
  return cause, tonumber(n)
end

-- depart notes that the last n ids of the flights have left them.
local function depart(n, last)
  local numbers = {}
  for field in pairs(claim) do
    if string.byte(field, 1) == 35 then numbers[#numbers + 1] = tonumber(string.sub(field, 2)) end
  end
  table.sort(numbers, function(x, y) return x > y end)
  for _, number in ipairs(numbers) do
    local name = string.format('%.0f', number)
    local size = tonumber(claim['#' .. name])
    local left = last and 0 or math.max(0, size - n)
    n = n - (size - left)
    if left == 0 then
      redis.call('HDEL', KEY.claim, '#' .. name, '@' .. name)
    elseif left < size then
      redis.call('HSET', KEY.claim, '#' .. name, left)
    end
    if n <= 0 and not last then break end
  end
  if last then
    local stray = {'recover'}
    for field in pairs(claim) do
      if string.byte(field, 1) == 64 then stray[#stray + 1] = field end
    end
    redis.call('HDEL', KEY.claim, unpack(stray))
  end
end

-- recover takes a part of the flights back, the last ids first: ids in quarantine go to the head of
-- suspects, the others to the head of the ready list. `judge`, if given, sees every id first and
-- may take it away. It returns how many jobs that were, and how many ids are left. A record that
-- cannot be read goes back as it is, or the script would end half-way (I6).
local function recover(judge)
  local ids, left = redis.call('LRANGE', KEY.flight, -1000, -1), redis.call('LLEN', KEY.flight)
  local count, gone = 0, 0
  while gone < #ids and not enough() do
    local id = ids[#ids - gone]
    left, gone = left - 1, gone + 1
    local record = redis.call('HGET', KEY.jobs, id)
    if record then
      count = count + 1
      weigh_record(record)
      weigh_id()
      if not judge or not pcall(parse, record) or not judge(id, record) then
        pcall(back, id, record)
        to_head(id, record)
      end
    end
  end
  if left > 0 then redis.call('LTRIM', KEY.flight, 0, -gone - 1) else redis.call('DEL', KEY.flight) end
  depart(gone, left == 0)
  return count, left
end
