-- Included by scripts that parse lines of the journal. internal/store/journal has their form.

-- each_run calls see for each run of a block, with the id, the letter of the verdict, and the line. If the
-- run has a log, its line comes before. each_run ends at an unreadable line, or when see returns true.
local function each_run(block, see)
  local from, p = 1, 1
  while p <= #block do
    local verdict, id, err, log, result, parts = string.match(block, '^(%S+) %S+ %S+ %S+ %S+ %S+ (%d+) (%d+) (%d+) (%d+)\n()', p)
    if not parts then return end
    p = parts + id + err + log + math.max(0, result - 1)
    if verdict ~= 'l' then
      if see(string.sub(block, parts, parts + id - 1), verdict, string.sub(block, from, p - 1)) then return end
      from = p
    end
  end
end
