-- Included after lib/spill.lua, lib/measure.lua and lib/urgent.lua: puts the jobs in flight back to the head of the
-- ready list (I2), some in each call. Expects `claim` (fields of the claim), KEY.claim, KEY.jobs,
-- KEY.ready, KEY.flight, KEY.parked, KEY.crashes, KEY.suspects, KEY.spill, KEY.spillx, KEY.late,
-- KEY.postponed, KEY.progress.
--
-- While a recovery runs, the claim has a field recover with its cause and the number of ids that were in
-- flight at its beginning, such as "seize 36". A pop refuses to run until the field is gone. So no pop
-- sees a shard whose flights are partly back (I3). The owner continues the recovery, and if it dies, the
-- next owner does (resume.lua).

-- reunite merges the payloads that were parked during a flight into the job that was in flight. Retry
-- count, due time and, if it has one, the error of that job win. It returns the record to store. A
-- damaged parked record stays parked, for a repair.
local function reunite(id, job)
  local parked = redis.call('HGET', KEY.parked, id)
  if parked and not pcall(parse, parked) then parked = nil end
  local record = spill_join(KEY.spill, KEY.spillx, 'w', id, job, parked or nil)
  if parked then redis.call('HDEL', KEY.parked, id) end
  return record
end

-- back stores the record of a job that comes back from its flight. The record of a new job without
-- parked payloads stays as it is.
local function back(id, record)
  local form = string.byte(record, 1)
  if (form == 97 or form == 101) and redis.call('HEXISTS', KEY.parked, id) == 0 then return end
  redis.call('HSET', KEY.jobs, id, reunite(id, parse(record)))
end

-- due_of returns the due time (us) of a record.
local function due_of(record)
  local form = string.byte(record, 1)
  if (form == 97 or form == 101) and #record >= 8 then return us7(record, 2) end
  return tonumber(string.match(record, '^.%S+ (%d+)') or 0)
end

-- to_head puts an id at the head of the suspects if it is in quarantine, else of the ready list. If last is
-- true, the id goes behind the other suspects. An urgent id goes to its place among the urgent ids.
local function to_head(id, record, last)
  local suspect = redis.call('HEXISTS', KEY.crashes, id) == 1
  if suspect then
    redis.call(last and 'RPUSH' or 'LPUSH', KEY.suspects, id)
  elseif not (urging and seat(id, due_of(record))) then
    redis.call('LPUSH', KEY.ready, id)
  end
  if has_failed(record) then redis.call('HSET', KEY.late, id, 1) end
  local since = since_of(record)
  if since then redis.call('ZADD', KEY.postponed, string.format('%.0f', since), id) end
end

-- recovery begins a recovery, or continues it. It returns the cause of the recovery and the number of
-- ids that were in flight at its beginning, or nil if no flight is open.
local function recovery(cause)
  redis.call('HDEL', KEY.claim, '') -- the first write needs no memory: see lease.lua
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

-- depart updates the claim after the last n ids of the flights have left. last is true if no id is left.
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

-- recover puts a part of the flights back, the last ids first. Ids in quarantine go to the head of the
-- suspects, others to the head of the ready list. If there is a judge, it sees every id first and may
-- bury it. recover returns the number of jobs that it handled and the number of ids that are left. An
-- unreadable record goes back unchanged, because an error would end the script half-way (I6).
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
