-- Included after lib/record.lua by scripts that people run: records that may be damaged. One of
-- them must neither hide the others nor end a script half-way (I6).

-- head_if reads what a record says of its job, nil if it cannot be read. After the head of a
-- form that has one, it also gives the place where that ends.
local function head_if(rec)
  local form = string.byte(rec, 1)
  if form == 97 and #rec >= 10 or form == 101 and #rec >= 16 then return {retry = -1, at = us7(rec, 2)} end
  if not string.match(rec, '^[jp]%-?%d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^s%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^[jp]%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+\n')
    and not string.match(rec, '^s%-?%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+\n') then return nil end
  return head_of(rec)
end

-- readable says whether all of a record can be read; none is.
local function readable(rec) return not rec or (pcall(parse, rec)) end
