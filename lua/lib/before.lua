-- Included by scripts that read a sorted set behind a place. A place is a score and a member, which need not exist any
-- more. So the scripts neither skip nor repeat a member that stays.

-- is_above compares bytes. Lua's own comparison depends on the locale of the host.
local function is_above(x, y)
  for i = 1, math.min(#x, #y) do
    local a, b = string.byte(x, i, i), string.byte(y, i, i)
    if a ~= b then return a > b end
  end
  return #x > #y
end

-- count_before returns how many members of a sorted set are before a place, in the order of the set. If `through` is
-- true, it counts the member of the place as well.
local function count_before(key, score, member, through)
  local a, b = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
  while a < b do
    local middle = math.floor((a + b) / 2)
    local other = redis.call('ZRANGE', key, middle, middle)[1]
    if is_above(other, member) or not through and other == member then b = middle else a = middle + 1 end
  end
  return a
end
