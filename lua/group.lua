-- group: how many ids of some groups of a queue an instance may hand to handlers now, of those that the cluster may.
--
--#keys groups groupsx lease
-- ARGV  1 instance  2 number of the request, one more each time  3 how many ids of a group may be in calls at once, 0: any
--       number  4 us per id of a group's rate, 0: it has none  5 how many at once after a rest
--       6 how long all of it is kept after the last request (ms)
--       then per group: its name; how many of its ids the instance has in calls, and begins no more before the answer;
--       how many it asks for that were told to ask again now; how many others; us for which no more may begin, 0: none;
--       us between two of its ids that are to ask again
-- Returns per group: how many of the former may, how many of the others, after how many us the first of the former that
--         may not is to ask again, and the first of the others; each further one later by what lies between two; 1 if none may begin because a
--         handler said so
-- Errors: LEASE  the instance has none;  LATE  a later request of the instance has come: nothing has changed
--
-- Field "g<group>" of groups is "<at> <owed> <step> <line> <near> <till> <turn> <next> <resets>\n", us, then "<held> <instance>\n" of each that has ids of it
-- in calls. at: when it was written; owed, step: as in rate. till: until then none may begin, because a handler said so. line, near:
-- when the last of those told to ask again is to, that had not, or had been told so before. Ids that come while others are in the line
-- go to its end, unless nobody uses what the rate allows. turn: the instance that has the next permit that is free, because it has none of the group
-- and an id of it that was told to ask again was refused; that is to ask at next, and others leave it one permit when that is now. Else an instance with
-- a crowd of ids would have each permit again that it gives back, before the one id of another is next in the line. If it does not come, it is
-- nobody's turn for a while, so an instance that is always late costs the others little. Field "i<instance>" is the number of its last request.
-- Field r is how often lines were reset (group_reset.lua): in an entry from before that line and near say nothing.
--
-- No more of a group are in calls than the limit, unless that was lowered: an instance holds what it was granted until it
-- says that it has fewer, and nothing once its lease is gone: its calls have ended by then (I1).
--
-- groupsx is when which field is to be looked at again, us: those that say nothing any more are removed, a few more at a time than a
-- request may have added.
-- KEY.lease is what the names of leases begin with; no such key exists.
--#include owed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, step, burst = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local turn_lasts = 100000 -- us: so far from next others leave a permit; a node that lives has popped the id and asked by then
local turn_again = 1000000 -- us after next: then there may be another turn
local farthest = now + 3600000000 -- nobody is told to ask again later than in an hour
redis.call('HDEL', KEY.groups, '') -- a first write that cannot grow, for a Redis out of memory: see lease.lua

local mine = 'i' .. ARGV[1]
local number, resets = unpack(redis.call('HMGET', KEY.groups, mine, 'r'))
resets = resets or '0'

local leases = {}
local function lives(instance)
  if leases[instance] == nil then leases[instance] = redis.call('EXISTS', KEY.lease .. ':' .. instance) == 1 end
  return leases[instance]
end

-- read has an entry as it is now, with those of its holders that live, all but this instance. If Redis's clock was set back, so are
-- the entry's times.
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

-- write keeps an entry, unless it says nothing.
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

-- again is when the first of n ids is to ask again, behind the last one that is to, and when the last one is.
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
  reply[#reply + 1] = entry.till > now and 1 or 0
end

local own = ' ' .. ARGV[1] .. '\n'
local due = redis.call('ZRANGEBYSCORE', KEY.groupsx, '-inf', string.format('%.0f', now), 'LIMIT', 0, 8 + #reply / 5)
for i = 1, #due do
  local field = due[i]
  local text = redis.call('HGET', KEY.groups, field)
  if string.sub(field, 1, 1) ~= 'i' and text then
    if string.find(text, own, 1, true) then -- it stands: read leaves it out
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
