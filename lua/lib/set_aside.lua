-- Included. Expects KEY.aside.

-- set_aside keeps an unreadable record. An earlier record of the same field stays, too.
local function set_aside(field, record)
  while redis.call('HEXISTS', KEY.aside, field) == 1 do field = field .. '+' end
  redis.call('HSET', KEY.aside, field, record)
end
