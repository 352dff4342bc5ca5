-- Included by scripts that change many ids: how much is enough for one call. Redis serves no
-- other client meanwhile. What is left is for the next call, also of one id: see piece_count in
-- lib/spill.lua.
local seen = 0

-- weigh adds payloads, of which large ones count more.
local function weigh(n, bytes) seen = seen + n + math.floor(bytes / 512) end

-- weigh_record adds a record that is read or written as a whole.
local function weigh_record(record)
  local n = string.match(record, '^[jp]%S+ %d+ (%d+) ')
  weigh(n or 1, #record)
end

-- weigh_id adds what any id costs: to find it, to read and to write it. in_flight: how many are, if
-- it is looked for among them.
local function weigh_id(in_flight) weigh(8 + math.floor((in_flight or 0) / 256), 0) end

-- enough says that the call ends here.
local function enough() return seen >= 2000 end
