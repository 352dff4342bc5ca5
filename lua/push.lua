-- push: put payloads into one shard, all that it does in one step (I6, I7).
--
--#keys jobs ready count due flight parked stale spill spillx
-- ARGV  1 mode  2 most payloads waiting per id  3 most bytes waiting per id  4 channel to wake the owner
--       then per job, by mode:
--         a  id, tail                            tail = 2 bytes place in this push + payload
--         e  id, tail                            tail = 8 bytes score (IEEE 754, big endian) + payload
--         m  id, payload, score, perform_in      score and perform_in (us) may be empty
--       An id that is there more than 8 times goes by mode m, which reads its record once: that of a flight may have 1 MiB.
-- Returns the number of jobs when all were fresh ids; else one character per job:
--         0 stored  1 merged into an equal payload  2 too many payloads  3 too many bytes
--         4 the id's record cannot be read  5 an earlier payload of the id was refused by 2 or 3
--       Fewer characters than jobs: the rest was not looked at, and is to be sent again. What a job costs depends on
--       what waits for its id, up to 16 KiB or 32 payloads that move to the spill; Redis serves no other client meanwhile.
-- Errors: REMOVED the field that says so: the queue is deleted, nothing was stored; see remove_shard.lua
-- Keeps I2 (stored before the answer) and I3 (default scores rise strictly within a shard; no
-- payload of an id is stored after an earlier one of the same push was refused).
--
-- The common push, fresh ids that are due now, is a handful of bulk commands and one
-- concatenation per job. Anything else takes the second half of the script.
local mode = ARGV[1]
local width = mode == 'm' and 4 or 2
local n = (#ARGV - 4) / width
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local said = redis.call('HGET', KEY.count, 'last') or 0
local last = tonumber(said)
if not last then return redis.error_reply('REMOVED ' .. said) end
local base = now
if last >= base then base = last + 1 end

--#include micros

local ids = {}
for i = 1, n do ids[i] = ARGV[5 + (i - 1) * width] end
-- Records are read some at a time, as the loop of the second half may end before it comes to the
-- others.
local old, read, few = {}, 0, 64
local fresh = mode ~= 'm'
while fresh and read < n do
  local found = redis.call('HMGET', KEY.jobs, unpack(ids, read + 1, math.min(n, read + few)))
  for i = 1, #found do
    if found[i] then fresh = false break end
  end
  if not fresh then
    for i = 1, #found do old[read + i] = found[i] end
  end
  read, few = read + #found, math.min(256, few * 2)
end

if fresh then
  local head = mode .. b7(mode == 'a' and base or now)
  for i = 6, #ARGV, 2 do ARGV[i] = head .. ARGV[i] end
  local added = redis.call('HSET', KEY.jobs, unpack(ARGV, 5))
  if added == n then
    if mode == 'a' then redis.call('HSET', KEY.count, 'last', string.format('%.0f', base + n - 1)) end
    if redis.call('RPUSH', KEY.ready, unpack(ids)) == n then redis.call('PUBLISH', ARGV[4], '0') end
    return n
  end
  -- An id came twice in this push, which has 8 jobs at most. Its last record overwrote the first;
  -- the loop below writes every id of the push again, and ends early of more jobs only.
  for i = 6, #ARGV, 2 do ARGV[i] = string.sub(ARGV[i], 9) end
end

--#include record
--#include spill

local defer, deferred = nil, nil
--#include store
return table.concat(answer)
