-- Common to put_back and publish. unite makes one pile of payloads of two, at home: those at home join the pile, which then takes their
-- place. Of equal payloads the pile's score stays. It moves at most so many, and says whether that is all.
local function unite(pile, home, most)
  local there = redis.call('ZRANGE', home, 0, most - 1, 'WITHSCORES')
  for i = 1, #there, 2 do
    if not redis.call('ZSCORE', pile, there[i]) then redis.call('ZADD', pile, there[i + 1], there[i]) end
    redis.call('ZREM', home, there[i])
  end
  if redis.call('EXISTS', home) == 1 then return false end
  if redis.call('EXISTS', pile) == 1 then redis.call('RENAME', pile, home) end
  return true
end

