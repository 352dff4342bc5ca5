-- freeze: take a shard out of use, for the deletion of its queue or for another number of shards; give it back; or
-- delete it. See queue/remove and queue/reshard.
--
--#keys count claim jobs ready due retry blocked suspects crashes stale urgent late postponed morgue dead
--#keys spill spillx aside states statesx since
--#keys old:count old:claim old:jobs old:ready old:due old:retry old:blocked old:suspects old:crashes old:stale old:urgent
--#keys old:late old:postponed old:morgue old:dead old:spill old:spillx old:aside old:states old:statesx old:since
--#keys flight parked progress coming out from journal journalx
-- ARGV  1 step: freeze, thaw or drop  2 the mark: 'removed <token>' or 'moved <number of the new layout>'
--       3 freeze: what the shard must be: 'quiet' (no id is in flight, and no jobs of another system move in or out),
--         'unowned' (no instance owns it), or 'empty' (no instance owns it, and nothing is in it)
--         drop: how long (ms) the journal and the numbers of sources stay; '0' deletes them now
--       4 freeze: the time (us) since which the longest waiting job waits, or ''
--         drop: when the shard was frozen (us), '' if that does not matter
-- Returns {'OK', mark, fence, ids that are not done, ids in the morgue, payloads in the morgue, records set aside, states
--         of ids, processed, failed, follow-ups that wait to be delivered, the queue of the rule `then` (see claim.lua) or
--         ''}. mark is field last of count, see below.
--         {'BUSY', why, ids}  freeze: flights are not over, or have left payloads behind, or follow-ups wait to be
--                             delivered, or jobs of another system move, or too many sources are known; at most five ids
--         {'HELD', holder}    freeze: an instance owns the shard
--         {'FILLED', ...}     freeze: the shard is not empty; figures as for OK
--         {'OTHER', mark}     freeze: the shard has another mark, which must be taken away by a thaw
--         {'STALE', mark}     drop: the shard does not have this mark, or was frozen at another time
-- Errors: DAMAGED the shard has no mark, but keys that only a frozen shard has
-- Nothing is done except for OK. Each step may be repeated, and does nothing under another mark.
--
-- The mark is field last of count, "<ARGV[2]> <last> <now us> <ARGV[4]>". Pushes and claims read that field, and
-- refuse. The keys of jobs get other names, so that no script changes them. Only thaw gives them back, byte for byte.
-- After drop the mark stays. So no process that knew the shard stores a job where no node looks (I2). RENAME and UNLINK
-- take as long for a million jobs as for one.
local moved = 21 -- the first keys, and as many old: keys behind them
local step, mark = ARGV[1], ARGV[2]
redis.call('HDEL', KEY.claim, '') -- the first write needs no memory: see lease.lua
local last = redis.call('HGET', KEY.count, 'last') or ''
local word, token, at = string.match(last, '^(%S+) (%S+) %S+ (%S+) ')
local there = word and word .. ' ' .. token
local is_frozen = there == mark

local function answer(code)
  local tag = string.sub(KEY.count, 1, -6) .. (is_frozen and 'old:' or '')
  local count = redis.call('HMGET', tag .. 'count', 'tombs', 'morgue', 'processed', 'failed', 'then')
  for i = 1, 4 do count[i] = tonumber(count[i] or 0) or 0 end
  local jobs = tag .. 'jobs'
  local ids = redis.call('HLEN', jobs) - redis.call('HEXISTS', jobs, '') - count[1] -- '': see claim.lua
  return {code, redis.call('HGET', KEY.count, 'last') or '', redis.call('HGET', tag .. 'claim', 'fence') or '0', math.max(0, ids),
    redis.call('HLEN', tag .. 'morgue'), count[2], redis.call('HLEN', tag .. 'aside'), redis.call('HLEN', tag .. 'states'), count[3], count[4],
    redis.call('XLEN', KEY.out), count[5] or ''}
end

-- refusal returns the answer of a shard that is not as the caller wants it, or nil. For 'empty' it does not rely on
-- counters alone, because a wrong counter must not cost a job.
local function refusal(want)
  if want == 'quiet' then
    if redis.call('EXISTS', KEY.flight) == 1 then return {'BUSY', 'in flight', redis.call('LRANGE', KEY.flight, 0, 4)} end
    if redis.call('HEXISTS', KEY.claim, 'recover') == 1 then return {'BUSY', 'a recovery', {}} end
    if redis.call('EXISTS', KEY.parked) == 1 then return {'BUSY', 'parked', redis.call('HRANDFIELD', KEY.parked, 5)} end
    if redis.call('EXISTS', KEY.out) == 1 then return {'BUSY', 'follow-ups', {}} end
    if redis.call('HLEN', KEY.from) > 50000 then return {'BUSY', 'sources', {}} end -- maxSources in queue/reshard
    if redis.call('HEXISTS', KEY.from, 'export') == 1 then return {'BUSY', 'a move', {'export'}} end
    local cursor = '0'
    repeat -- the shards of the new layout do not know what was imported here
      local page = redis.call('HSCAN', KEY.from, cursor, 'MATCH', 'import/*', 'COUNT', 1000)
      cursor = page[1]
      for i = 1, #page[2], 2 do
        local field, number = page[2][i], page[2][i + 1]
        if not string.find(field, '\0', 1, true) and string.byte(number, 1) ~= 120 then return {'BUSY', 'a move', {field}} end
      end
    until cursor == '0'
    return nil
  end
  local holder = redis.call('HGET', KEY.claim, 'instance')
  if holder then return {'HELD', holder} end
  if want == 'unowned' then return nil end
  local filled = answer('FILLED')
  if filled[4] > 0 or redis.call('EXISTS', KEY.due, KEY.retry, KEY.blocked, KEY.flight, KEY.parked, KEY.suspects, KEY.morgue, KEY.dead, KEY.spill, KEY.aside, KEY.states, KEY.out) > 0 then
    return filled
  end
end

if step == 'thaw' then
  for i = 1, is_frozen and moved or 0 do
    if redis.call('EXISTS', KEYS[moved + i]) == 1 then
      redis.call('RENAME', KEYS[moved + i], KEYS[i])
    elseif i == 1 then
      redis.call('DEL', KEY.count)
    end
  end
  is_frozen = false
  return answer('OK')
elseif step == 'drop' then
  if not is_frozen or (ARGV[4] or '') ~= '' and ARGV[4] ~= at then return {'STALE', last} end
  redis.call('UNLINK', KEY.flight, KEY.parked, KEY.progress, KEY.coming, KEY.out, unpack(KEYS, moved + 1, 2 * moved))
  for _, key in ipairs({KEY.from, KEY.journal, KEY.journalx}) do
    if ARGV[3] == '0' then redis.call('UNLINK', key) else redis.call('PEXPIRE', key, ARGV[3]) end
  end
elseif is_frozen then
  redis.call('HSET', KEY.count, 'last', last) -- the caller waits for replicas, and WAIT asks for a write
else
  if there then return {'OTHER', last} end
  local refused = refusal(ARGV[3])
  if refused then return refused end
  if redis.call('EXISTS', unpack(KEYS, moved + 1, 2 * moved)) > 0 then return redis.error_reply('DAMAGED the shard has keys old:*, and no mark') end
  for i = 1, moved do
    if redis.call('EXISTS', KEYS[i]) == 1 then redis.call('RENAME', KEYS[i], KEYS[moved + i]) end
  end
  local time = redis.call('TIME')
  redis.call('HSET', KEY.count, 'last', mark .. ' ' .. (tonumber(last) and last or '0') .. string.format(' %.0f ', time[1] * 1000000 + time[2]) .. ARGV[4])
  is_frozen = true
end
return answer('OK')
