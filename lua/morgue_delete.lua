-- morgue_delete: forget what the morgue holds of these ids.
--
--#keys morgue dead count spill spillx
-- ARGV  1 '1' if the call before this one began with the first id  then ids (at most 1,000)
-- Returns {the number of ids that were there, of how many this call was, '1' if it began with one more and more
--         payloads of it are left}; see lib/measure.lua.
--#include record
--#include spill
--#include measure
local count, looked = 0, 0

-- forget_piece forgets a piece of a crowded record and says whether there is more.
local function forget_piece(id, record)
  local sound, job = pcall(parse, record)
  if not sound then job = {bytes = math.huge} end
  local piece = spill_take(KEY.spill, KEY.spillx, 'm', id, job) -- first what frees memory: see lease.lua
  weigh(piece.n, piece.bytes)
  redis.call('HINCRBY', KEY.count, 'morgue', -piece.n)
  if job.n == 0 then return false end
  if sound then redis.call('HSET', KEY.morgue, id, head('s', job)) end
  return true
end

for i = 2, #ARGV do
  local id = ARGV[i]
  local record = redis.call('HGET', KEY.morgue, id)
  if record then
    if i > 2 or ARGV[1] ~= '1' then count = count + 1 end
    weigh_record(record)
    local crowded = string.byte(record, 1) == 115
    if crowded and forget_piece(id, record) then return {count, looked, 1} end
    redis.call('HDEL', KEY.morgue, id)
    redis.call('ZREM', KEY.dead, id)
    local sound, job = pcall(parse, record)
    if sound and not crowded then redis.call('HINCRBY', KEY.count, 'morgue', -job.n) end
  end
  looked = looked + 1
  weigh_id()
  if enough() then break end
end
return {count, looked, 0}
