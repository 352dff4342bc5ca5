-- Included by scripts that learn how runs ended: the shard's journal. Expects KEY.journal, KEY.journalx, KEY.count,
-- KEY.progress.
--
-- KEY.journal is a stream with one entry per script; internal/journal has the form of entries and lines. KEY.journalx is a
-- list with "<id> <lines>" for each, oldest first: what is to be trimmed is found without reading entries, of which Redis's
-- Lua would look at each byte. A row may stand for several entries: for all from the row before it up to its id. In KEY.count:
--   runs       how many lines there are
--   oldest     when the first entry was written, ms; only where the queue has a bound of age
--   journal    "<most lines> <most ms>", the bounds of the last script that was told them; 0 ms: none
--   unlogged   how many lines were left out, ever, because Redis was out of memory
local entry, entry_runs, entry_full = {}, 0, false

-- open_journal comes before the first write of a script. Redis out of memory refuses the first command that could grow,
-- and none after a write: so this one, which changes nothing, says whether the lines must be left out (I2: what a handler
-- has done is taken all the same).
local function open_journal()
  local held = redis.pcall('HINCRBY', KEY.count, 'runs', 0)
  entry_full = type(held) == 'table'
end

-- journal_log is a line with what was noted of an id in its flight, which goes before that of its run; '' if nothing was.
-- popped: when its flight was, us.
local function journal_log(id, popped)
  local was = redis.call('HGET', KEY.progress, id)
  local at = was and string.match(was, '^(%d+) ')
  local stop = at and string.find(was, '\n', 1, true)
  if not stop or stop == #was or tonumber(at) < (tonumber(popped) or 0) then return '' end
  local log = string.sub(was, stop + 1)
  return 'l 0 0 0 0 0 ' .. #id .. ' 0 ' .. #log .. ' 0\n' .. id .. log
end

-- journal adds lines of so many runs.
local function journal(lines, runs)
  entry[#entry + 1], entry_runs = lines, entry_runs + runs
end

-- trim_journal removes entries that are too many or too old, those of eight rows at most, so that most scripts need not.
-- Until there is a tenth more lines than are kept, none is.
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

-- close_journal writes what was added, of runs of this instance. bounds as in field journal; nil: those of that field, or
-- 64 lines.
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
  local lines = entry[2] and table.concat(entry) or entry[1] -- to make a text costs Redis's Lua a look at each byte
  local id = redis.call('XADD', KEY.journal, '*', 'i', instance, 'n', entry_runs, 'l', lines)
  redis.call('RPUSH', KEY.journalx, id .. ' ' .. entry_runs)
  trim_journal(held, most, ms, now)
  entry, entry_runs = {}, 0
end
