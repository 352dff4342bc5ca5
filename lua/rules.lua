-- rules: change what is said of a queue's rules at run time, and write down who did it (I6).
--
--#keys rules changes
-- ARGV  1 queue  2 its settings as read, '' if there were none  3 those to be, '' removes them
--       4 the line that tells of it, '' for none  5 most lines that are kept
-- Returns 1; 0 if somebody has changed them since.
-- Each text of settings has a revision, so that no two are equal: a change that is sent twice finds itself.
-- Field # says when the last change of all was, us, so that who has read all needs to ask for no more than that. It only
-- rises, and is a time: a count would come to the same number again after a failover that forgot the last change.
redis.call('HDEL', KEY.rules, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua
local was = redis.call('HGET', KEY.rules, ARGV[1]) or ''
if was == ARGV[3] then return 1 end
if was ~= ARGV[2] then return 0 end
-- The line comes first: where it cannot be written, as the log is of another type, nothing is changed.
if ARGV[4] ~= '' then redis.call('XADD', KEY.changes, 'MAXLEN', '~', ARGV[5], '*', 'line', ARGV[4]) end
if ARGV[3] == '' then redis.call('HDEL', KEY.rules, ARGV[1]) else redis.call('HSET', KEY.rules, ARGV[1], ARGV[3]) end
local time, last = redis.call('TIME'), tonumber(redis.call('HGET', KEY.rules, '#') or 0) or 0
redis.call('HSET', KEY.rules, '#', string.format('%.0f', math.max(time[1] * 1e6 + time[2], last + 1)))
return 1
