-- Included after lib/record.lua by scripts for people: reads records that may be damaged. A damaged
-- record must neither hide others nor end a script half-way (I6).

-- head_if parses the head of a record. It returns nil if the record cannot be read. For a form with a
-- head it also returns the place where the head ends.
local function head_if(rec)
  local form = string.byte(rec, 1)
  if form == 97 and #rec >= 10 or form == 101 and #rec >= 16 then return {retry = -1, at = us7(rec, 2)} end
  if not string.match(rec, '^[jp]%-?%d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^s%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^[jp]%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^s%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+\n') then return nil end
  return head_of(rec)
end

-- readable reports whether a whole record can be read. A missing record is readable.
local function readable(rec) return not rec or (pcall(parse, rec)) end
