-- rules: change what is said of a queue's rules at run time, and write down who did it (I6).
--
--#keys rules changes
-- ARGV  1 queue  2 its settings as read, '' if there were none  3 those to be, '' removes them
--       4 the line that tells of it, '' for none  5 most lines that are kept
-- Returns 1; 0 if somebody has changed them since.
-- Each text of settings has a revision, so that no two are equal: a change that is sent twice finds itself.
-- Field # counts all changes, so that who has read all needs to ask for no more than that.
redis.call('HDEL', KEY.rules, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua
local was = redis.call('HGET', KEY.rules, ARGV[1]) or ''
if was == ARGV[3] then return 1 end
if was ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEY.rules, ARGV[1]) else redis.call('HSET', KEY.rules, ARGV[1], ARGV[3]) end
redis.call('HINCRBY', KEY.rules, '#', 1)
if ARGV[4] ~= '' then redis.call('XADD', KEY.changes, 'MAXLEN', '~', ARGV[5], '*', 'line', ARGV[4]) end
return 1
