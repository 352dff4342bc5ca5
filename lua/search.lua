-- search: find records and payloads that contain given texts. Reads only.
--
--#keys jobs parked spill morgue
-- ARGV  1 from: waiting (also in flight) or morgue  2 text in an id or a payload  3 text of a tag in a payload
--       4 text in the error; in 2 to 4, '' matches anything  5 maximum bytes to look through, except for the first
--       record  6 cursor of HSCAN ('' for no scan)  7 about how many ids the scan takes
--       then per named id: id, key of a payload in its spill to continue behind ('' for the whole id)
-- Returns {next cursor ('' without a scan), ids looked at (not counting ids with a key), number of ids that are left,
--         id and key of each id that is left, then per find: id, form, text}
-- A find is a record (form r), a payload as stored (form p), or the id alone (form '') if its payloads need no look.
-- The script compares ids and errors themselves. It looks for the texts of payloads anywhere in a record, so the
-- caller must check the finds. After a find the script still searches the rest of the id. It looks at the record of an
-- id, its parked payloads and its spill together, as far as the bytes go. So it misses no payload that moves between
-- them.
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

-- see looks at a record or a payload. Each costs 128 bytes of the room besides its length.
local function see(id, named, form, what)
  room = room - #what - 128
  if (named or string.find(what, text, 1, true)) and string.find(what, tag, 1, true) then add(finds, id, form, what) end
end

-- behind returns the lower bound of the members of a spill with a greater key. For key '' it is the bound of all
-- members.
local function behind(prefix, key)
  if key == '' then return '[' .. prefix end
  return '[' .. prefix .. string.sub(key, 1, 19) .. string.char(string.byte(key, 20) + 1)
end

-- walk looks at the payloads of a crowded id behind a key.
local function walk(id, named, key)
  local prefix = spill_prefix(space, id)
  local _, to = spill_range(prefix)
  while true do
    local few = redis.call('ZRANGEBYLEX', KEY.spill, behind(prefix, key), to, 'LIMIT', 0, 4) -- members may be large
    for i = 1, #few do see(id, named, 'p', string.sub(few[i], #prefix + 21)) end
    if #few < 4 then return end
    key = string.sub(few[4], #prefix + 1, #prefix + 20)
    if #key < 20 then return end -- it is damaged, and an audit reports it
    if room <= 0 then return add(left, id, key) end
  end
end

local function crowded(record) return record and string.byte(record, 1) == 115 end

-- look looks at an id, or at the payloads behind a key in its spill.
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

-- turn looks at an id if there is room. Otherwise the id is left.
local function turn(id, record, key)
  if room <= 0 then return add(left, id, key) end
  record = record or redis.call('HGET', hash, id)
  room = room - 64 -- the cost of any id
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
