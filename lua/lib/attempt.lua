-- Included by scripts that learn of an attempt that came to nothing: the shard's list of attempts,
-- newest first. A success writes nothing. The list is cut, so nothing else ever deletes it.
--
-- An entry is "us retry kind idlen instancelen\n", then id, instance and the line of the
-- error that says most.
-- kind: failed (a retry is spent), exhausted (it was the last), crashed (the worker died with it)
local attempts = {}

-- attempt remembers one; note_attempts writes down all of them at once. line: Go has cut the error
-- down to it (queue.Summary). Text of a user is never searched here: what such a search costs, all
-- of Redis waits for.
local function attempt(now, id, retry, kind, instance, line)
  -- Not '%s': string.format ends a short string at its first zero byte.
  attempts[#attempts + 1] = string.format('%.0f %d ', now, retry) .. kind .. string.format(' %d %d\n', #id, #instance)
    .. id .. instance .. line
end

local function note_attempts(key)
  local n = #attempts
  if n == 0 then return end
  local length = redis.call('LPUSH', key, unpack(attempts, math.max(1, n - 63), n))
  if length > 64 then redis.call('LTRIM', key, 0, 63) end
end
