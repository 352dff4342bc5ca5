-- group_reset: forget when ids of groups ask again, because the rule has changed or a person lets a group go on.
--
--#keys groups
-- ARGV  1 the group, '' for all groups
-- Returns 1, or 0 if Redis has no entry of the group
-- The ids in calls and the state of the rate stay. For all groups the script increases field r. The times to ask again
-- in entries from before then mean nothing. For a single group, the stop that a handler asked for ends as well.
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
