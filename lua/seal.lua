-- seal: refuse all further entries of a source, however late they come.
--
--#keys from
-- ARGV  1 the source's field  2 a cursor, '0' at first
-- Returns the next cursor, '0' at the end
--
-- A process that moves jobs may be frozen in a request while another process takes its place. The other
-- process may put a refused entry back, and the late request of the first would store it again under its old
-- number (see import.lua). After seal the late request stores nothing. Its entries count as stored before,
-- because field <source> is above every number. For an id with a refused entry, they count as behind the
-- refused number 1, which no entry has.
if string.byte(redis.call('HGET', KEY.from, ARGV[1]) or '0', 1) == 120 then return '0' end -- the source is forgotten
redis.call('HSET', KEY.from, ARGV[1], '9007199254740992')
local prefix = ARGV[1] .. '\0'
local scan = redis.call('HSCAN', KEY.from, ARGV[2], 'COUNT', 500)
for i = 1, #scan[2], 2 do
  local field, state = scan[2][i], scan[2][i + 1]
  if string.sub(field, 1, #prefix) == prefix then
    local taken = string.match(state, '^(%d+) ')
    if taken then redis.call('HSET', KEY.from, field, taken .. ' 1 0 0') end
  end
end
return scan[1]
