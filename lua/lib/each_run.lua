-- Included by scripts that take lines of the journal apart; internal/journal has their form.

-- each_run calls see with the id, the verdict's letter and the line of each run of a block: with the line of its log
-- before it, if it has one. It ends at a line that it cannot read, and where see returns true.
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
