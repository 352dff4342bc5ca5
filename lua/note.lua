-- note: store the progress of a job in flight, and the state of its id.
--
--#keys claim flight states statesx progress
-- ARGV  1 instance  2 fence  3 flight  4 id  5 progress: '' keeps it, else "share\nline", where a share of 0
--       and an empty line keep theirs; the last kilobyte of all lines of the flight is stored
--       6 state, as in complete.lua
-- Returns 1, or 0 if the id is not in that flight; then nothing is stored.
-- Errors: FENCED holder fence
-- The progress ends with the flight of its id: complete.lua, nack.lua, bury.lua and lib/recover.lua delete
-- it. The acks of ack.lua and pop.lua do not, because an endpoint may send notes to a node that does not run
-- the job. A progress that is older than the flight is not shown, and the next note deletes it.
--#include claimed
--#include take_out

-- joined appends a line to a log, unless it is the last line already, because a note may come twice (I6). It
-- returns the last kilobyte, from the beginning of a line. See internal/store/journal.
local most_log = 1024
local function joined(log, line)
  if line == '' or log == line or string.sub(log, -#line - 1) == '\n' .. line then return log end
  if log ~= '' then line = log .. '\n' .. line end
  if #line <= most_log then return line end
  local whole = string.sub(line, -most_log - 1, -most_log - 1) == '\n'
  line = string.sub(line, -most_log)
  local stop = not whole and string.find(line, '\n', 1, true)
  return stop and string.sub(line, stop + 1) or line
end
local before, size = stretch(ARGV[3])
local place = size > 0 and redis.call('LPOS', KEY.flight, ARGV[4])
if not place or place < before or place >= before + size then return 0 end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[5] ~= '' then
  local stop = string.find(ARGV[5], '\n', 1, true)
  local share, text = string.sub(ARGV[5], 1, stop - 1), string.sub(ARGV[5], stop + 1)
  local was = redis.call('HGET', KEY.progress, ARGV[4]) or ''
  local at, from = string.match(was, '^(%d+) ()')
  local line = string.find(was, '\n', 1, true)
  if at and line and at + 0 >= (claim['@' .. ARGV[3]] or 0) + 0 then -- of this flight
    if share == '0' then share = string.sub(was, from, line - 1) end
    text = joined(string.sub(was, line + 1), text)
  end
  redis.call('HSET', KEY.progress, ARGV[4], now .. ' ' .. share .. '\n' .. text)
end
if redis.call('HLEN', KEY.progress) > redis.call('LLEN', KEY.flight) then
  for _, id in ipairs(redis.call('HRANDFIELD', KEY.progress, 8)) do
    if not redis.call('LPOS', KEY.flight, id) then redis.call('HDEL', KEY.progress, id) end
  end
end
--#include keep
keep(ARGV[4], ARGV[6], now)
return 1
