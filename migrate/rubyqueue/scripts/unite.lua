-- Common to put_back and publish. unite merges two piles of payloads: those at home join the pile, which then takes their place. Of
-- equal payloads the pile's score stays. unite moves at most the given number of payloads and of bytes, exceeded by at most a payload,
-- and reports whether it has moved all.
local function unite(pile, home, most, most_bytes)
  local moved, bytes = 0, 0
  while moved < most and bytes < most_bytes do
    local first = redis.call('ZRANGE', home, 0, 0, 'WITHSCORES')
    local payload, score = first[1], first[2]
    if not payload then break end
    redis.call('ZADD', pile, 'NX', score, payload)
    redis.call('ZREMRANGEBYRANK', home, 0, 0)
    moved, bytes = moved + 1, bytes + #payload
  end
  if redis.call('EXISTS', home) == 1 then return false end
  if redis.call('EXISTS', pile) == 1 then redis.call('RENAME', pile, home) end
  return true
end

