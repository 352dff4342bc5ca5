-- rules: change the settings of a queue, and record who changed them (I6).
--
--#keys rules changes
-- ARGV  1 queue  2 settings as read ('' if there were none)  3 new settings ('' removes them)
--       4 line about the change ('' for none)  5 maximum number of kept lines
-- Returns 1, or 0 if the settings have changed since they were read.
-- Each text of settings has a revision, so no two texts are equal. A repeated change finds its own text and returns 1.
-- Field # is the time (us) of the last change of any settings. A process that has read all settings reads them again
-- only after field # has changed. It only rises. A count would not do, because it could reach the same number again
-- after a failover that lost the last change.
redis.call('HDEL', KEY.rules, '') -- the first write needs no memory: see lease.lua
local was = redis.call('HGET', KEY.rules, ARGV[1]) or ''
if was == ARGV[3] then return 1 end
if was ~= ARGV[2] then return 0 end
-- The line comes first. If it cannot be written, because the key has another type, nothing is changed.
if ARGV[4] ~= '' then redis.call('XADD', KEY.changes, 'MAXLEN', '~', ARGV[5], '*', 'line', ARGV[4]) end
if ARGV[3] == '' then redis.call('HDEL', KEY.rules, ARGV[1]) else redis.call('HSET', KEY.rules, ARGV[1], ARGV[3]) end
local time, last = redis.call('TIME'), tonumber(redis.call('HGET', KEY.rules, '#') or 0) or 0
redis.call('HSET', KEY.rules, '#', string.format('%.0f', math.max(time[1] * 1e6 + time[2], last + 1)))
return 1
