-- push: store payloads in one shard, in one step (I6, I7).
--
--#keys jobs ready count due flight parked stale spill spillx
-- ARGV  1 mode  2 maximum number of waiting payloads per id  3 their maximum bytes per id  4 channel that wakes the owner
--       then for each job, by mode:
--         a  id, tail                            tail = 2 bytes place in this push + payload
--         e  id, tail                            tail = 8 bytes score (IEEE 754, big endian) + payload
--         m  id, payload, score, due time        score and due time (us) may be empty
--       A push of more than 8 jobs with an id that comes twice has mode m, which reads each record once. A
--       record in flight may have 1 MiB.
-- Returns the number of jobs if all ids were new; else one character per job:
--         0 stored  1 merged into an equal payload  2 too many payloads  3 too many bytes
--         4 the record of the id cannot be read  5 an earlier payload of the id was refused by 2 or 3
--       If there are fewer characters than jobs, the caller sends the rest again. The cost of a job
--       depends on the payloads that wait for its id: up to 16 KiB, or 32 payloads that move to the
--       spill. Redis serves no other client meanwhile.
-- Errors: REMOVED mark: the queue is deleted, and nothing was stored; see freeze.lua
-- Keeps I2 (stored before the answer) and I3 (default scores rise strictly within a shard; no payload
-- of an id is stored after the refusal of an earlier payload of the same push).
--
-- The common push has new ids that are due now. It takes a handful of bulk commands and one
-- concatenation per job. All other pushes take the second half of the script.
local mode = ARGV[1]
local width = mode == 'm' and 4 or 2
local n = (#ARGV - 4) / width
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--#include last_score

--#include micros

local ids = {}
for i = 1, n do ids[i] = ARGV[5 + (i - 1) * width] end
-- The script reads records in parts, because the loop of the second half may end early.
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
  -- An id came twice in this push, which then has at most 8 jobs. Its last record has overwritten the
  -- first. The loop below writes every id of the push again; it ends early only for more than 8 jobs.
  for i = 6, #ARGV, 2 do ARGV[i] = string.sub(ARGV[i], 9) end
end

--#include record
--#include spill

local defer, deferred, strict = nil, nil, false
--#include store
--#include line_up
return table.concat(answer)
