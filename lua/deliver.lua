-- deliver: store a push once, however often it is sent, and whichever process sends it.
--
--#keys jobs ready count due flight parked stale spill spillx from
-- ARGV  1 mode: m  2-4 and 5 id, 6 payload, 7 score, 8 due time (us) as in push.lua
--       9 source: the name of the sender  10 the number of the push, which rises for each push of the source
--       to this shard
-- Returns d if a push of the source with this number or a higher one was stored before; nothing was done.
--         Otherwise the code of push.lua. After 2, 3 or 4 nothing was stored, and it may be sent again.
-- Errors: REMOVED as push.lua
-- Keeps I2 and I3 as push.lua does. If the sender of a source dies, another process sends the same number.
local from = redis.call('HGET', KEY.from, ARGV[9]) or '0'
local taken = tonumber(from)
if not taken then return redis.error_reply('DAMAGED the number of the last delivery of ' .. ARGV[9] .. ' is no number: ' .. from) end
if tonumber(ARGV[10]) <= taken then return 'd' end
local mode, width, n = 'm', 4, 1
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local said = redis.call('HGET', KEY.count, 'last') or 0
local last = tonumber(said)
if not last then return redis.error_reply('REMOVED ' .. said) end
local base = now
if last >= base then base = last + 1 end
local ids, old, read = {ARGV[5]}, {}, 0
--#include record
--#include spill
local defer, deferred = nil, nil
--#include store
--#include line_up
if answer[1] == '0' or answer[1] == '1' then redis.call('HSET', KEY.from, ARGV[9], ARGV[10]) end
return answer[1]
