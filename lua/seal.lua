-- seal: a source of entries is over: nothing of it is taken in any more, however late it comes.
--
--#keys from
-- ARGV  1 the source's field  2 a cursor, '0' at first
-- Returns the next cursor, '0' at the end
--
-- A process that moves jobs may be frozen in a request while another one takes its place. What that one has put back because it
-- was refused may come again by its old number, see import.lua: not after this. What is in is answered as being in, and the
-- rest of the ids of which an entry was refused as behind number 1, which no entry has.
if string.byte(redis.call('HGET', KEY.from, ARGV[1]) or '0', 1) == 120 then return '0' end -- it is forgotten
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
