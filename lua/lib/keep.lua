-- Included by scripts that take what handlers keep of ids. Expects KEY.states, KEY.statesx.

-- keep replaces the state of an id: '' leaves it as it was, '-' deletes it, '=' comes before its
-- bytes. now: us, text.
local function keep(id, state, now)
  if state == '-' then
    redis.call('HDEL', KEY.states, id)
    redis.call('ZREM', KEY.statesx, id)
  elseif state ~= '' then
    redis.call('HSET', KEY.states, id, string.sub(state, 2))
    redis.call('ZADD', KEY.statesx, now, id)
  end
end
