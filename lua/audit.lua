-- audit: where some ids are, all at one instant. Reads only.
--
-- KEYS  1 jobs  2 ready  3 due  4 retry  5 blocked  6 flight  7 parked  8 crashes  9 suspects
--       10 count  11 spill  12 spillx  13 stale  14 late  15 morgue  16 dead
-- ARGV  1 '1': look into ready too, which takes as long as it is  then ids (few, records are copied)
-- Returns per id 15 values: the beginnings of its records in jobs, parked and morgue ('' = none);
--       its scores in due, retry, blocked and dead ('' = not there); how often it is in flight and
--       among suspects; its crashes ('' = none); how often it is in ready (at most 2; -1 = not
--       looked); how many payloads of it are in the spill, of jobs and parked, and of the morgue; 1 if it is stale; 1 if
--       it is late.
local function count_of(list)
  local n = {}
  for _, id in ipairs(list) do n[id] = (n[id] or 0) + 1 end
  return n
end
local flight = count_of(redis.call('LRANGE', KEYS[6], 0, -1))
local suspects = count_of(redis.call('LRANGE', KEYS[9], 0, -1))

local function spilled(space, id)
  local prefix = space .. #id .. ':' .. id .. ':'
  return redis.call('ZLEXCOUNT', KEYS[11], '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';') -- see lib/spill.lua
end

local out = {}
local function add(value) out[#out + 1] = value end
for i = 2, #ARGV do
  local id = ARGV[i]
  for _, key in ipairs({KEYS[1], KEYS[7], KEYS[15]}) do
    add(string.sub(redis.call('HGET', key, id) or '', 1, 120))
  end
  for _, key in ipairs({KEYS[3], KEYS[4], KEYS[5], KEYS[16]}) do
    add(redis.call('ZSCORE', key, id) or '')
  end
  add(flight[id] or 0)
  add(suspects[id] or 0)
  add(redis.call('HGET', KEYS[8], id) or '')
  add(ARGV[1] == '1' and #redis.call('LPOS', KEYS[2], id, 'COUNT', 2) or -1)
  add(spilled('w', id))
  add(spilled('m', id))
  add(redis.call('HEXISTS', KEYS[13], id))
  add(redis.call('HEXISTS', KEYS[14], id))
end
return out
