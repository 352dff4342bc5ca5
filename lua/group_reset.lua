-- group_reset: ids of groups that were told when to ask again may ask now: the rule has changed, or a person lets a group go on.
--
--#keys groups
-- ARGV  1 the group, '' all
-- Returns 1, or 0 if nothing was known of it
-- What is in calls, and what a rate has let go, stands. Field r counts how often all of them were reset: an entry from before that says no
-- more when ids are to ask. Of one group also ends for how long a handler lets none begin.
if redis.call('EXISTS', KEY.groups) == 0 then return 0 end
if ARGV[1] == '' then
  redis.call('HINCRBY', KEY.groups, 'r', 1)
  return 1
end
local field = 'g' .. ARGV[1]
local text = redis.call('HGET', KEY.groups, field) or ''
local at, owed, step, turn, ask_at, resets, holders = string.match(text, '^(%d+) (%S+) (%S+) %d+ %d+ %d+ (%S+) (%d+) (%d+)\n()')
if not at then return 0 end
redis.call('HSET', KEY.groups, field, table.concat({at, owed, step, 0, 0, 0, turn, ask_at, resets}, ' ') .. '\n' .. string.sub(text, holders))
return 1
