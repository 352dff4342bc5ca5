-- tick: take a recurring entry one step further. A step begins the push of a tick, or sets the next tick after the push.
--
--#keys recurring ticks ticked
-- ARGV  1 name  2 entry as read  3 tick as read in us ('' if there was none)  4 tick after the step (us)
--       5 kept data as read ('' if there was none)  6 kept data after the step  7 number of the entry's last push
-- Returns 1, or 0 if entry, tick or kept data are not as read; nothing is done then. A repeated step finds its own
--         values and returns 1.
if redis.call('HGET', KEY.recurring, ARGV[1]) ~= ARGV[2] then return 0 end
local due, was = redis.call('ZSCORE', KEY.ticks, ARGV[1]), redis.call('HGET', KEY.ticked, ARGV[1]) or ''
due = due and tonumber(due)
if was == ARGV[6] and due == tonumber(ARGV[4]) then return 1 end
if was ~= ARGV[5] or due ~= (ARGV[3] ~= '' and tonumber(ARGV[3])) then return 0 end
redis.call('ZADD', KEY.ticks, ARGV[4], ARGV[1])
redis.call('HSET', KEY.ticked, ARGV[1], ARGV[6])
-- Field # is the highest number of a push. It outlasts entries, so an entry that is added anew continues from there.
local highest = tonumber(redis.call('HGET', KEY.ticked, '#') or 0) or 0
if tonumber(ARGV[7]) > highest then redis.call('HSET', KEY.ticked, '#', ARGV[7]) end
return 1
