-- Included by scripts that change many ids: a bound on the work of a call, because Redis serves no other
-- client meanwhile. The caller sends the rest again. A call may also end within a crowded id: see
-- piece_count in lib/spill.lua.
local seen = 0

-- weigh adds payloads by number and by size.
local function weigh(n, bytes) seen = seen + n + math.floor(bytes / 512) end

-- weigh_record adds a record that is read or written whole.
local function weigh_record(record)
  local n = string.match(record, '^[jp]%S+ %d+ (%d+) ')
  weigh(n or 1, #record)
end

-- weigh_id adds the cost of finding, reading and writing an id. in_flight is the length of the flight
-- list, if the id is searched there.
local function weigh_id(in_flight) weigh(8 + math.floor((in_flight or 0) / 256), 0) end

-- enough reports whether the call must end here.
local function enough() return seen >= 2000 end
