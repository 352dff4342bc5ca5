-- Included by scripts that change many ids: how much is enough for one call. Redis serves nobody else
-- meanwhile, and an id may have 10,000 payloads.
local seen = 0

-- weigh adds a record's payloads, of which large ones count more.
local function weigh(record)
  local n, bytes = string.match(record, '^[js]%S+ %d+ (%d+) (%d+) ')
  seen = seen + (n or 1) + math.floor((bytes or #record) / 4096)
end

-- enough says that the ids that are left are for the next call.
local function enough() return seen >= 1000 end
