-- runs: read lines of a shard's journal. Reads only.
--
--#keys journal
-- ARGV  1 new (the newest entry first) or old  2 first entry to read, as in XRANGE  3 last entry to read
--       4 id of the wanted runs ('' for all)  5 letters of the wanted verdicts ('' for all)  6 maximum number of lines
--       7 maximum bytes to look through, except for the first entry
-- Returns {the entry to continue with or '', then per entry with wanted lines: its id, the instance, lines}
-- The wanted lines of an entry come together, so there may be more lines than the maximum.
--#include each_run
local newest, at, last = ARGV[1] == 'new', ARGV[2], ARGV[3]
local wanted, most, room = ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7])
local verdicts = {}
for i = 1, #ARGV[5] do verdicts[string.sub(ARGV[5], i, i)] = true end
local any = #ARGV[5] == 0
local answer, found, few = {''}, 0, 1

-- those returns the wanted lines of a block, and their number.
local function those(block, runs)
  if wanted == '' and any then return block, runs end
  local lines = {}
  each_run(block, function(id, verdict, line)
    if (wanted == '' or id == wanted) and (any or verdicts[verdict]) then lines[#lines + 1] = line end
  end)
  return table.concat(lines), #lines
end

while true do
  local entries = newest and redis.call('XREVRANGE', KEY.journal, at, last, 'COUNT', few + 1)
    or redis.call('XRANGE', KEY.journal, at, last, 'COUNT', few + 1)
  for i = 1, math.min(few, #entries) do
    if found >= most or room <= 0 then
      answer[1] = entries[i][1]
      return answer
    end
    local field = {}
    for k = 1, #entries[i][2], 2 do field[entries[i][2][k]] = entries[i][2][k + 1] end
    local block = field.l or ''
    room = room - #block - 64
    local lines, runs = those(block, tonumber(field.n) or 0)
    if lines ~= '' then
      found = found + runs
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = entries[i][1], field.i or '', lines
    end
  end
  if #entries <= few then return answer end
  at = entries[few + 1][1]
  few = room > 65536 and math.min(32, 2 * few) or 1
end
