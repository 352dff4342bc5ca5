-- Included by the pushes. It reads the last default score of the shard (us) into `last`, and sets `base` to the next default
-- score. Expects `now`. The script ends with REMOVED if the queue is deleted.
local said = redis.call('HGET', KEY.count, 'last') or 0
local last = tonumber(said)
if not last then return redis.error_reply('REMOVED ' .. said) end
local base = now
if last >= base then base = last + 1 end
