-- audit: read where some ids are, all at one instant. Reads only.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed
--#keys morgue dead states statesx progress urgent
-- ARGV  1 '1': search ready too, in time proportional to its length  then ids (few, because records are copied)
-- Returns 20 values per id: the beginnings of its records in jobs, parked and morgue ('' without a record);
--       its scores in due, retry, blocked and dead ('' if it is not there); its entries in flight and in suspects;
--       its crashes ('' without a count); its entries in ready (at most 2; -1 if ready was not searched); its payloads
--       in the spill, those of jobs and parked, then those of the morgue; 1 if it is stale; 1 if it is late; 1 if
--       it has a state; the time of its state ('' if unknown); 1 if it has progress; the time since which it is
--       marked as postponed ('' without a mark); its score in urgent ('' if it is not there).
local function count_of(list)
  local n = {}
  for _, id in ipairs(list) do n[id] = (n[id] or 0) + 1 end
  return n
end
local flight = count_of(redis.call('LRANGE', KEY.flight, 0, -1))
local suspects = count_of(redis.call('LRANGE', KEY.suspects, 0, -1))

local function spilled(space, id)
  local prefix = space .. #id .. ':' .. id .. ':'
  return redis.call('ZLEXCOUNT', KEY.spill, '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';') -- see lib/spill.lua
end

local out = {}
local function add(value) out[#out + 1] = value end
for i = 2, #ARGV do
  local id = ARGV[i]
  for _, key in ipairs({KEY.jobs, KEY.parked, KEY.morgue}) do
    add(string.sub(redis.call('HGET', key, id) or '', 1, 120))
  end
  for _, key in ipairs({KEY.due, KEY.retry, KEY.blocked, KEY.dead}) do
    add(redis.call('ZSCORE', key, id) or '')
  end
  add(flight[id] or 0)
  add(suspects[id] or 0)
  add(redis.call('HGET', KEY.crashes, id) or '')
  add(ARGV[1] == '1' and #redis.call('LPOS', KEY.ready, id, 'COUNT', 2) or -1)
  add(spilled('w', id))
  add(spilled('m', id))
  add(redis.call('HEXISTS', KEY.stale, id))
  add(redis.call('HEXISTS', KEY.late, id))
  add(redis.call('HEXISTS', KEY.states, id))
  add(redis.call('ZSCORE', KEY.statesx, id) or '')
  add(redis.call('HEXISTS', KEY.progress, id))
  add(redis.call('ZSCORE', KEY.postponed, id) or '')
  add(redis.call('ZSCORE', KEY.urgent, id) or '')
end
return out
