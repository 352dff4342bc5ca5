-- search: records and payloads in which some texts stand. Reads only.
--
--#keys jobs parked spill morgue
-- ARGV  1 from: waiting (or in flight), or morgue  2 text of an id or a payload  3 another one of a payload
--       4 text of the error ('' = any, of all three)  5 most bytes to look through, but for the first record  6 cursor of HSCAN ('' = none)
--       7 about how many ids to take from there  then per id that is named: id, key of a payload in its spill, to look behind that ('' = at all of it)
-- Returns {next cursor ('' = none was asked for), ids looked at, but for those with a key, how many are left,
--         id, key of each that is left, then per find: id, form, text}
-- A find is a record (form r), a payload as it is stored (form p), or, where no payload is asked for, the id alone (form '').
-- Ids and errors are compared as such. What is asked of a payload may stand anywhere in a record: who
-- asks reads what was found. After a find the rest of its id is searched, too. The record of an id,
-- what was pushed during its flight and its spill are looked at together, as far as the bytes go, so
-- that nothing is missed that moves between them.
--#include record
--#include sound
--#include spill
local in_morgue, text, tag, fault = ARGV[1] == 'morgue', ARGV[2], ARGV[3], ARGV[4]
local room = tonumber(ARGV[5])
local hash, space = in_morgue and KEY.morgue or KEY.jobs, in_morgue and 'm' or 'w'
local parked = not in_morgue and redis.call('HLEN', KEY.parked) > 0
local answer, left, finds, looked = {'', 0, 0}, {}, {}, 0

local function add(list, ...)
  for _, part in ipairs({...}) do list[#list + 1] = part end
end

-- see looks at a record or a payload, which costs as much as some bytes more, however short it is.
local function see(id, named, form, what)
  room = room - #what - 128
  if (named or string.find(what, text, 1, true)) and string.find(what, tag, 1, true) then add(finds, id, form, what) end
end

-- behind is the least member of a spill whose key is greater than this one, '' = the least of all.
local function behind(prefix, key)
  if key == '' then return '[' .. prefix end
  return '[' .. prefix .. string.sub(key, 1, 19) .. string.char(string.byte(key, 20) + 1)
end

-- walk looks at payloads of a crowded id behind a key.
local function walk(id, named, key)
  local prefix = spill_prefix(space, id)
  local _, to = spill_range(prefix)
  while true do
    local few = redis.call('ZRANGEBYLEX', KEY.spill, behind(prefix, key), to, 'LIMIT', 0, 4) -- they may be large
    for i = 1, #few do see(id, named, 'p', string.sub(few[i], #prefix + 21)) end
    if #few < 4 then return end
    key = string.sub(few[4], #prefix + 1, #prefix + 20)
    if #key < 20 then return end -- damaged: check names it
    if room <= 0 then return add(left, id, key) end
  end
end

local function crowded(record) return record and string.byte(record, 1) == 115 end

-- look looks at an id, or what is behind a key in its spill.
local function look(id, record, key)
  if fault ~= '' then
    local job = string.find(record, fault, 1, true) and head_if(record)
    room = room - #record
    if not job or not string.find(job.err or '', fault, 1, true) then return end
  end
  local named = text == '' or string.find(id, text, 1, true)
  if named and tag == '' then return add(finds, id, '', '') end
  if key ~= '' then return walk(id, named, key) end
  local later = parked and redis.call('HGET', KEY.parked, id)
  see(id, named, 'r', record)
  if later then see(id, named, 'r', later) end
  if crowded(record) or crowded(later) then
    if room <= 0 then return add(left, id, string.rep('\0', 20)) end
    walk(id, named, '')
  end
end

-- turn looks at an id, if there is room.
local function turn(id, record, key)
  if room <= 0 then return add(left, id, key) end
  record = record or redis.call('HGET', hash, id)
  room = room - 64 -- what any id costs
  if not record or record == 'x' then return end
  if key == '' then looked = looked + 1 end
  look(id, record, key)
end

for i = 8, #ARGV, 2 do turn(ARGV[i], nil, ARGV[i + 1]) end
if ARGV[6] ~= '' then
  local found = redis.call('HSCAN', hash, ARGV[6], 'COUNT', ARGV[7])
  answer[1] = found[1]
  for i = 1, #found[2], 2 do
    if found[2][i] ~= '' then turn(found[2][i], found[2][i + 1], '') end -- '': see the end of claim.lua
  end
end
answer[2], answer[3] = looked, #left / 2
for _, list in ipairs({left, finds}) do
  for i = 1, #list do answer[#answer + 1] = list[i] end
end
return answer
