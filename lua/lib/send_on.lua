-- Included by scripts that end payloads: follow-ups, the pushes to any queue that the end of a payload causes. The
-- step that ends a payload also stores its follow-ups (I6). A relay delivers them (node/internal/relay/relay.go).
--
-- KEY.out is a stream of follow-ups, in the order of the ends. The id of an entry is "<number>-0". The shard that gets
-- a follow-up refuses numbers that are not above the last number that it took (deliver.lua). So a repeated delivery
-- changes nothing, but a number that came a second time would lose its follow-up. Therefore a number is the time (us) or,
-- if that is not higher, the number before it plus 1. So numbers rise also after Redis has lost its last writes. The clock
-- of a new master may be behind, so a relay delivers only numbers that a replica has (outgoing.lua). Field out of
-- KEY.count is the last number, because the stream may be empty. The fields of an entry are:
--   q queue  i id  p payload  s score, or ''  a due time (us), or ''
--   e ''                in the stored form of its queue
--     buried\n<error>   by the rule `then` of this shard's queue: the payload as this queue stores it, and at most
--                       1 KiB of its error
--     expired           likewise
local sent_on

-- send_on stores a follow-up. It wakes the relay with the first follow-up of a script.
local function send_on(queue, id, payload, score, at, ended)
  if not sent_on then
    local time = redis.call('TIME')
    sent_on = math.max(tonumber(redis.call('HGET', KEY.count, 'out') or 0) or 0, time[1] * 1000000 + time[2] - 1)
    redis.call('PUBLISH', string.sub(KEY.out, 1, -4) .. 'wake', 'out')
  end
  sent_on = sent_on + 1
  local number = string.format('%.0f', sent_on)
  redis.call('HSET', KEY.count, 'out', number)
  redis.call('XADD', KEY.out, number .. '-0', 'q', queue, 'i', id, 'p', payload, 's', score, 'a', at, 'e', ended)
end
