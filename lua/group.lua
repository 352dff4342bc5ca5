-- group: how many ids of some groups of a queue may an instance hand to handlers now?
--
--#keys groups groupsx lease
-- ARGV  1 instance  2 number of the request, which grows by 1 with each request  3 maximum number of ids of a group
--       in handler calls, 0: no limit  4 us per id of a group's rate, 0: no rate  5 burst of the rate
--       6 time to live of the keys after the last request (ms)
--       then per group: name; ids that the instance has in handler calls, which begins no other before the answer;
--       ids that want to begin and were told to ask again now; other ids that want to begin; us for which no id may
--       begin, 0: none; us between two ids that are told to ask again
-- Returns per group: number of ids told to ask again that may begin; number of the other ids that may begin; us after
--         which the first refused id of the former asks again; us after which the first refused id of the others does.
--         Each further id asks later by the us between two ids.
-- Errors: LEASE: the instance has no lease; LATE: a later request of the instance has come, and nothing has changed
--
-- Field g<group> of groups is "<at> <owed> <step> <line> <near> <till> <turn> <next> <resets>\n", and then
-- "<held> <instance>\n" for each instance with ids of the group in handler calls. Times are in us.
--   at          when the entry was written
--   owed, step  the rate, as in rate.lua
--   till        no id begins before it, because a handler has stopped the group
--   line        when the last id asks again that was told so for the first time
--   near        when the last id asks again that had been told so before
--   turn, next  the instance that gets the next free permit ('-' for none), and when it asks
--   resets      field r when the entry was written. Field r counts the resets of all groups (group_reset.lua). In an
--               entry with an older count, line and near mean nothing.
-- Field i<instance> is the number of the instance's last request.
--
-- In a group with a rate, new ids join the end of the line while other ids are in it, unless the whole burst is free.
--
-- Turns are for groups with a limit and no rate. An instance without ids of the group in calls gets the turn if an id
-- that was told to ask again is refused. Near the time next, the other instances leave a permit free for it. Without
-- turns, an instance with many ids would take back each permit that it gives back, before the single id of another
-- instance asks again. If an instance misses its turn, no instance gets a turn for a second. So an instance that is
-- always late costs the others little.
--
-- The ids of a group in calls exceed the limit only after the limit was lowered. An instance holds what it was granted
-- until it reports fewer ids. An instance without a lease holds nothing, because its calls have ended by then (I1).
--
-- groupsx has the time (us) when each field is checked next. A request removes fields that mean nothing any more, a few
-- more than it may have added.
-- KEY.lease is the beginning of the names of leases. No key has this name.
--#include owed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, step, burst = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local turn_lasts = 100000 -- us before and after next in which others leave a permit; a live node has popped the id and asked by then
local turn_again = 1000000 -- us after next until which there is no other turn
local farthest = now + 3600000000 -- nobody is told to ask again later than in an hour
redis.call('HDEL', KEY.groups, '') -- the first write needs no memory: see lease.lua

local mine = 'i' .. ARGV[1]
local number, resets = unpack(redis.call('HMGET', KEY.groups, mine, 'r'))
resets = resets or '0'

local leases = {}
local function lives(instance)
  if leases[instance] == nil then leases[instance] = redis.call('EXISTS', KEY.lease .. ':' .. instance) == 1 end
  return leases[instance]
end

-- read parses an entry as it is now, with its live holders except for this instance. If Redis's clock was set back,
-- read moves the entry's times back as well.
local function read(text)
  local at, owed, drain, line, near, till, turn, ask_at, reset, from =
    string.match(text or '', '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+)\n()')
  if reset ~= resets then line, near = 0, 0 end
  local back, entry = math.max(0, tonumber(at or 0) - now), {}
  entry.owed, entry.drain = still_owed(tonumber(owed or 0), tonumber(at or 0), tonumber(drain or 0), now, step)
  entry.line, entry.near, entry.till = (line or 0) - back, (near or 0) - back, (till or 0) - back
  entry.next, entry.turn = (ask_at or 0) - back, turn or '-'
  if entry.next + turn_again < now then entry.turn = '-' end
  entry.held, entry.holders = 0, {}
  local stop = from and string.find(text, '\n', from, true)
  while stop do
    local line = string.sub(text, from, stop)
    local held = string.match(line, '^%d+')
    local name = held and string.sub(line, #held + 2, -2)
    if held and name ~= ARGV[1] and lives(name) then
      entry.held = entry.held + held
      entry.holders[#entry.holders + 1] = line
    end
    from = stop + 1
    stop = string.find(text, '\n', from, true)
  end
  return entry
end

-- write stores an entry, or deletes it if it means nothing any more.
local function write(field, entry)
  if #entry.holders == 0 and entry.owed == 0 and entry.turn == '-' and math.max(entry.line, entry.near, entry.till) <= now then
    redis.call('HDEL', KEY.groups, field)
    redis.call('ZREM', KEY.groupsx, field)
    return
  end
  redis.call('HSET', KEY.groups, field,
    string.format('%.0f %.6f %.3f %.0f %.0f %.0f %s %.0f %s\n', now, entry.owed, entry.drain, math.max(0, entry.line), math.max(0, entry.near),
      math.max(0, entry.till), entry.turn, math.max(0, entry.next), resets) .. table.concat(entry.holders))
  redis.call('ZADD', KEY.groupsx, string.format('%.0f', now + 60000000), field)
end

-- again returns when the first of n ids asks again, behind the last id in the line, and when the last of them does.
local function again(last, earliest, n, spacing)
  local first = math.min(math.max(last + spacing, earliest), farthest)
  return first, math.min(first + (n - 1) * spacing, farthest)
end

if not lives(ARGV[1]) then return redis.error_reply('LEASE') end
if tonumber(ARGV[2]) <= tonumber(number or 0) then return redis.error_reply('LATE') end
redis.call('HSET', KEY.groups, mine, ARGV[2])
redis.call('ZADD', KEY.groupsx, string.format('%.0f', now + 60000000), mine)

local reply = {}
for p = 7, #ARGV, 6 do
  local field, busy, back, new = 'g' .. ARGV[p], tonumber(ARGV[p + 1]), tonumber(ARGV[p + 2]), tonumber(ARGV[p + 3])
  local entry, stop, spacing = read(redis.call('HGET', KEY.groups, field)), tonumber(ARGV[p + 4]), tonumber(ARGV[p + 5])
  if stop > 0 then entry.till = math.max(entry.till, now + stop) end
  local free, earliest, rested = back + new, now + spacing, true
  if limit > 0 then
    local kept = entry.turn ~= '-' and entry.turn ~= ARGV[1] and math.abs(entry.next - now) <= turn_lasts and 1 or 0
    free = math.min(free, math.max(0, limit - entry.held - busy - kept))
  end
  if step > 0 then
    local tokens = math.max(0, math.floor(burst - entry.owed + 0.000001))
    free, rested = math.min(free, tokens), tokens >= burst
  end
  if entry.till > now then free, earliest = 0, entry.till end
  back = math.min(back, free)
  if rested or entry.line <= now then new = math.min(new, free - back) else new = 0 end
  local more_back, more_new = tonumber(ARGV[p + 2]) - back, tonumber(ARGV[p + 3]) - new
  if step > 0 then
    if back + new > 0 then entry.owed, entry.drain = entry.owed + back + new, step end
    if limit == 0 or entry.held + busy + back + new < limit then earliest = now end
    earliest = math.max(earliest, entry.till, now + (entry.owed + 1 - burst) * entry.drain)
  end
  if entry.turn == ARGV[1] and back + new > 0 then entry.turn = '-' end
  local near, line = now, now
  local first = entry.turn == '-' or entry.turn == ARGV[1] and entry.next <= now and entry.next + turn_lasts >= now
  if more_back > 0 and first and limit > 0 and step == 0 and busy + back + new == 0 and entry.till <= now then
    entry.turn, entry.next = ARGV[1], earliest
    near = math.min(earliest, farthest)
    if more_back > 1 then entry.near = math.max(entry.near, math.min(earliest + (more_back - 1) * spacing, farthest)) end
  elseif more_back > 0 then
    near, entry.near = again(math.max(entry.near, now - spacing), earliest, more_back, spacing)
  end
  if more_new > 0 then line, entry.line = again(math.max(entry.line, now - spacing), earliest, more_new, spacing) end
  if limit > 0 and busy + back + new > 0 then
    entry.holders[#entry.holders + 1] = string.format('%d %s\n', busy + back + new, ARGV[1])
  end
  write(field, entry)
  reply[#reply + 1] = back
  reply[#reply + 1] = new
  reply[#reply + 1] = math.ceil(near - now)
  reply[#reply + 1] = math.ceil(line - now)
end

local own = ' ' .. ARGV[1] .. '\n'
local due = redis.call('ZRANGEBYSCORE', KEY.groupsx, '-inf', string.format('%.0f', now), 'LIMIT', 0, 8 + #reply / 4)
for i = 1, #due do
  local field = due[i]
  local text = redis.call('HGET', KEY.groups, field)
  if string.sub(field, 1, 1) ~= 'i' and text then
    if string.find(text, own, 1, true) then -- read would drop this instance, so the entry stays
      redis.call('ZADD', KEY.groupsx, string.format('%.0f', now + 60000000), field)
    else
      write(field, read(text))
    end
  elseif text and lives(string.sub(field, 2)) then
    redis.call('ZADD', KEY.groupsx, string.format('%.0f', now + 60000000), field)
  else
    redis.call('HDEL', KEY.groups, field)
    redis.call('ZREM', KEY.groupsx, field)
  end
end
redis.call('PEXPIRE', KEY.groups, ARGV[6])
redis.call('PEXPIRE', KEY.groupsx, ARGV[6])
return reply
