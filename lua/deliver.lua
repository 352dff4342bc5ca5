-- deliver: store pushes once, however often they are sent, and whichever process sends them.
--
--#keys jobs ready count due flight parked stale spill spillx from
-- ARGV  1 mode: m  2-4 as in push.lua  then per push 4 arguments as in mode m of push.lua
--       then the source, which is the name of the sender, and the number of each push. Numbers rise with the
--       pushes of the source to this shard.
-- Returns a character per push: d if a push of the source with this number or a higher one was stored before,
--         and nothing was stored; otherwise the code of push.lua. After 2, 3 or 4 the script ends, and stores no
--         later push. There may be fewer characters than pushes. The caller may send the rest again.
-- Errors: REMOVED as push.lua
-- Keeps I2 and I3 as push.lua does. If the sender of a source dies, another process sends the same numbers.
local mode, width, n = 'm', 4, (#ARGV - 5) / 5
local source, numbers = ARGV[5 + 4 * n], {}
for i = n, 1, -1 do
  numbers[i] = ARGV[#ARGV]
  ARGV[#ARGV] = nil
end
ARGV[#ARGV] = nil
local from = redis.call('HGET', KEY.from, source) or '0'
local taken = tonumber(from)
if not taken then return redis.error_reply('DAMAGED the number of the last delivery of ' .. source .. ' is no number: ' .. from) end
local before = 0 -- pushes that were stored before
while before < n and tonumber(numbers[before + 1]) <= taken do before = before + 1 end
if before == n then
  redis.call('HDEL', KEY.from, '') -- the first write needs no memory: see lease.lua
  redis.call('HSET', KEY.from, source, from) -- the caller waits for replicas, and WAIT asks for a write
  return string.rep('d', n)
end
if before > 0 then
  for i = 5 + 4 * before, #ARGV do ARGV[i - 4 * before] = ARGV[i] end
  for _ = 1, 4 * before do ARGV[#ARGV] = nil end
  n = n - before
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--#include last_score
local ids, old, read = {}, {}, 0
for i = 1, n do ids[i] = ARGV[1 + 4 * i] end
--#include record
--#include spill
local defer, deferred, strict = nil, nil, true
--#include store
--#include line_up
local stored = #answer
if answer[stored] > '1' then stored = stored - 1 end
if stored > 0 then redis.call('HSET', KEY.from, source, numbers[before + stored]) end
return string.rep('d', before) .. table.concat(answer)
