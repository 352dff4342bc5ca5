-- push_urgent: push.lua for a push with urgent jobs.
--
--#keys jobs ready count due flight parked stale spill spillx since urgent retry blocked crashes
-- ARGV  as in coalesce.lua; the due time of an urgent job begins with u, and u alone is now
-- Returns one character per job, and errors, as push.lua does
-- Keeps I2 and I3 as push.lua does. A stored or merged urgent job makes its id urgent (lib/urgent.lua), wherever the id
-- waits. It changes no due time. The urgent ids are in the order of their due times, and the ids of one push are 1 us apart. No push delays an urgent job (debounce).
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local urgent = {}
for i = 1, (#ARGV - 4) / 4 do
  local at = 4 + 4 * i
  if string.byte(ARGV[at], 1) == 117 then
    urgent[i] = true
    ARGV[at] = #ARGV[at] > 1 and string.sub(ARGV[at], 2) or string.format('%.0f', now)
  end
end
--#include coalesce
--#include sound
--#include urgent

local fresh, others, made = {}, {}, {}
for i = 1, #ready do fresh[ready[i]] = true end
local moved, waited = 0, redis.call('ZCOUNT', KEY.urgent, 0, '+inf')

-- make_urgent makes an id with waiting payloads urgent. If the id waits in ready, its entry there is passed over.
local function make_urgent(id)
  if in_flight[id] then
    redis.call('ZADD', KEY.urgent, -2, id)
  elseif redis.call('ZSCORE', KEY.due, id) or redis.call('ZSCORE', KEY.retry, id) or redis.call('ZSCORE', KEY.blocked, id)
    or redis.call('HEXISTS', KEY.crashes, id) == 1 then
    redis.call('ZADD', KEY.urgent, -1, id)
  elseif not in_line(id) then
    local job = head_if(waiting[id])
    redis.call('ZADD', KEY.urgent, string.format('%.0f', job.at + moved), id)
    moved = moved + 1
    if not fresh[id] then redis.call('HSET', KEY.stale, id, 1) end
    fresh[id] = nil
  end
end

for i = 1, #answer do
  if urgent[i] and not made[ids[i]] and (answer[i] == '0' or answer[i] == '1') then
    made[ids[i]] = true
    make_urgent(ids[i])
  end
end
for i = 1, #ready do
  if fresh[ready[i]] then others[#others + 1] = ready[i] end
end
ready = others
if moved > 0 and waited == 0 then wake = '0' end
--#include line_up
return table.concat(answer)
