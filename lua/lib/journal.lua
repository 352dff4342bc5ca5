-- Included by scripts that end runs: the journal of the shard. Expects KEY.journal, KEY.journalx,
-- KEY.count, KEY.progress.
--
-- KEY.journal is a stream with an entry per script call. internal/store/journal has the form of entries
-- and lines. KEY.journalx is a list with a row "<id> <lines>" per entry, oldest first. It says how many
-- entries to trim without reading them, because Redis's Lua looks at each byte that it reads. A row may
-- stand for several entries: all from the row before it up to its id. Fields of KEY.count:
--   runs       number of lines
--   oldest     time (ms) of the first entry, if the queue has a bound of age
--   journal    "<maximum lines> <maximum ms>", the bounds that a script was given last; 0 ms: no bound
--   unlogged   number of lines that were ever left out because Redis was out of memory
local entry, entry_runs, entry_full = {}, 0, false

-- open_journal must run before the first write of a script. A Redis that is out of memory refuses a
-- first write that may need memory, and no later write. The write of open_journal changes nothing. If
-- Redis refuses it, the script leaves the lines out, and still takes the answers of handlers (I2).
local function open_journal()
  local held = redis.pcall('HINCRBY', KEY.count, 'runs', 0)
  entry_full = type(held) == 'table'
end

-- journal_log returns the line with the notes of an id in its flight, or ''. It goes before the line of
-- the run. popped is the time of the pop (us).
local function journal_log(id, popped)
  local was = redis.call('HGET', KEY.progress, id)
  local at = was and string.match(was, '^(%d+) ')
  local stop = at and string.find(was, '\n', 1, true)
  if not stop or stop == #was or tonumber(at) < (tonumber(popped) or 0) then return '' end
  local log = string.sub(was, stop + 1)
  return 'l 0 0 0 0 0 ' .. #id .. ' 0 ' .. #log .. ' 0\n' .. id .. log
end

-- journal adds the lines of runs.
local function journal(lines, runs)
  entry[#entry + 1], entry_runs = lines, entry_runs + runs
end

-- trim_journal removes the entries beyond the bounds, at most those of eight rows. It begins when a tenth
-- more lines than the bound exist, so that most calls remove none.
local function trim_journal(held, most, ms, now)
  local oldest = ms > 0 and tonumber(redis.call('HGET', KEY.count, 'oldest') or 0)
  local before = now / 1000 - ms
  if held <= most + most / 10 and not (oldest and oldest < before) then return end
  local first = redis.call('LRANGE', KEY.journalx, 0, 8)
  local gone, kept = 0, 1
  while kept < #first do
    local at, runs = string.match(first[kept], '^(%d+)-%d+ (%d+)')
    at, runs = tonumber(at or 0), tonumber(runs or 0)
    if held - gone - runs < most and not (ms > 0 and at < before) then break end
    gone, kept = gone + runs, kept + 1
  end
  if kept > 1 then
    local ms, number = string.match(first[kept - 1], '^(%d+)-(%d+) ')
    if ms then redis.call('XTRIM', KEY.journal, 'MINID', string.format('%s-%.0f', ms, number + 1)) end
    redis.call('LTRIM', KEY.journalx, kept - 1, -1)
    redis.call('HINCRBY', KEY.count, 'runs', -gone)
  end
  if ms > 0 then redis.call('HSET', KEY.count, 'oldest', string.match(first[kept] or '', '^%d+') or 0) end
end

-- close_journal writes the added lines, as runs of this instance. bounds has the form of the field
-- journal; nil stands for the value of that field, or for 64 lines.
local function close_journal(instance, now, bounds)
  if entry_runs == 0 then return end
  if entry_full then
    redis.call('HINCRBY', KEY.count, 'unlogged', entry_runs)
    return
  end
  local last = redis.call('HGET', KEY.count, 'journal')
  if not bounds then
    bounds = last or '64 0'
  elseif bounds ~= last then
    redis.call('HSET', KEY.count, 'journal', bounds)
    redis.call('HDEL', KEY.count, 'oldest')
  end
  local most, ms = string.match(bounds, '^(%d+) (%d+)')
  most, ms = tonumber(most), tonumber(ms)
  local held = redis.call('HINCRBY', KEY.count, 'runs', entry_runs)
  local lines = entry[2] and table.concat(entry) or entry[1] -- Redis's Lua looks at each byte of a new string
  local id = redis.call('XADD', KEY.journal, '*', 'i', instance, 'n', entry_runs, 'l', lines)
  redis.call('RPUSH', KEY.journalx, id .. ' ' .. entry_runs)
  trim_journal(held, most, ms, now)
  entry, entry_runs = {}, 0
end
