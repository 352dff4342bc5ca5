-- Included by scripts that store the states of ids. Expects KEY.states, KEY.statesx.

-- keep sets the state of an id: '' keeps it, '-' deletes it, and '=' is followed by its bytes. now is a
-- time (us) as text.
local function keep(id, state, now)
  if state == '-' then
    redis.call('HDEL', KEY.states, id)
    redis.call('ZREM', KEY.statesx, id)
  elseif state ~= '' then
    redis.call('HSET', KEY.states, id, string.sub(state, 2))
    redis.call('ZADD', KEY.statesx, now, id)
  end
end
