-- show: read jobs for people, cut to a bound. Reads only.
--
--#keys jobs due retry blocked flight parked claim spill spillx morgue
-- ARGV  1 from: waiting (also in flight), morgue, or listed (waiting; the caller knows the state)
--       2 maximum bytes of payloads per job  3 maximum bytes of records to read  4 maximum payloads of a crowded job
--       5 maximum bytes of an error  then ids (at most 1,000)
-- Returns per id {state ('' if there is no job), flight, time of its pop (us), parked payloads, head, error, payloads,
--         bytes of all payloads}. When the bytes of records are used up, the remaining ids are missing at the end.
--         A job of form a or e has no head, and its payloads are the beginning of the record (lib/record.lua). The
--         head of a damaged record is '?', and its payloads are the beginning of the record.
--#include record
--#include sound
--#include spill
--#include held
local from, cut, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most_payloads, most_error = tonumber(ARGV[4]), tonumber(ARGV[5])

-- flights returns the flight of each id in flight, and the time of each flight's pop; see lib/take_out.lua.
local function flights()
  local sizes, numbers, ids = {}, {}, redis.call('LRANGE', KEY.flight, 0, -1)
  if #ids == 0 then return {}, {} end
  local flat, since = redis.call('HGETALL', KEY.claim), {}
  for i = 1, #flat, 2 do
    local first, number = string.byte(flat[i], 1), tonumber(string.sub(flat[i], 2))
    if first == 35 then numbers[#numbers + 1], sizes[number] = number, tonumber(flat[i + 1]) end
    if first == 64 then since[number] = flat[i + 1] end
  end
  table.sort(numbers)
  local flight, i = {}, 0
  for _, number in ipairs(numbers) do
    for k = i + 1, math.min(#ids, i + sizes[number]) do flight[ids[k]] = number end
    i = i + sizes[number]
  end
  for k = i + 1, #ids do flight[ids[k]] = 0 end
  return flight, since
end

local function count(record)
  if not record or record == 'x' then return 0 end
  local job = head_if(record)
  return job and (job.n or 1) or 0
end

-- first returns the first payloads of a crowded job, in the order in which a handler gets them.
local function first(space, id)
  local prefix = spill_prefix(space, id)
  local out, size = {}, 0
  if cut == 0 then return '' end
  local from, to = spill_range(prefix)
  while #out < most_payloads and size < cut do
    local few = redis.call('ZRANGEBYLEX', KEY.spill, from, to, 'LIMIT', 0, 4) -- members may be large
    for _, member in ipairs(few) do
      local data = string.sub(member, #prefix + 21)
      if size < cut then
        out[#out + 1] = f17(ranked(string.sub(member, #prefix + 1))) .. ' ' .. #data .. ':' .. string.sub(data, 1, cut - size)
      end
      size = size + #data
    end
    if #few < 4 then break end
    from = '(' .. few[4]
  end
  room = room - size
  return table.concat(out)
end

-- head_of_piece returns the first payloads of a record of form p, as a record of form j has them.
local function head_of_piece(record, p)
  local out, size = {}, 0
  while p < #record and size < cut do
    local a, b, c, d = string.byte(record, p + 20, p + 23)
    if not d then break end
    local n = ((a * 256 + b) * 256 + c) * 256 + d
    local score = f17(ranked(string.sub(record, p, p + 7)))
    out[#out + 1] = score .. ' ' .. n .. ':' .. string.sub(record, p + 24, p + 23 + math.min(n, cut - size))
    size, p = size + n, p + 24 + n
  end
  return table.concat(out)
end

local flight, since = {}, {}
if from == 'waiting' then flight, since = flights() end

local function state(id)
  if from ~= 'waiting' then return from end
  if flight[id] then return 'in_flight' end
  for _, list in ipairs({{'scheduled', KEY.due}, {'retry', KEY.retry}}) do
    local score = redis.call('ZSCORE', list[2], id)
    if score then return is_held(score) and 'held' or list[1] end
  end
  if redis.call('ZSCORE', KEY.blocked, id) then return 'blocked' end
  return 'ready'
end

local answer = {}
local function add(...)
  for _, part in ipairs({...}) do answer[#answer + 1] = part end
end

local function show(id)
  local record = redis.call('HGET', from == 'morgue' and KEY.morgue or KEY.jobs, id)
  if not record or record == 'x' then return add('', 0, '', 0, '', '', '', 0) end
  room = room - #record
  local there = state(id)
  local parked = there == 'in_flight' and count(redis.call('HGET', KEY.parked, id)) or 0
  local job, stop = head_if(record)
  if not job then
    return add(there, flight[id] or 0, since[flight[id] or 0] or '', parked, '?', '', string.sub(record, 1, 40), #record)
  end
  local form = string.byte(record, 1)
  if form == 97 or form == 101 then
    local before = form == 97 and 10 or 16
    return add(there, flight[id] or 0, since[flight[id] or 0] or '', parked, '', '', string.sub(record, 1, before + cut), #record - before)
  end
  local line = string.sub(record, 1, stop - #job.err - 1)
  local rest = string.sub(record, stop, stop + cut - 1)
  if form == 112 then rest = head_of_piece(record, stop) end
  if form == 115 then rest = first(from == 'morgue' and 'm' or 'w', id) end
  return add(there, flight[id] or 0, since[flight[id] or 0] or '', parked, line, string.sub(job.err, 1, most_error), rest, job.bytes)
end

for i = 6, #ARGV do
  show(ARGV[i])
  if room < 0 then break end
end
return answer
