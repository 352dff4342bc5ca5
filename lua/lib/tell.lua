-- Included by scripts that end payloads: who called learns how (I6: in the step that ends it).
--
-- A payload of a call has an address in its envelope (internal/envelope): r<token> <ms> <channel>.
-- The reply is the key <KEY.reply>:<token>, kept for so many ms:
--   done            the payload is done           done\n<result>   and its handler answered this
--   buried\n<error>  it is in the morgue           deleted          a person deleted it
--   expired         its time was over before a handler had it
--   see <name>      it is <KEY.reply>:<name>: calls that end together keep a long one once
-- On the channel goes "<token> ... <token>\n<reply>"; without the line break and the reply, if that
-- is too long: then it is to be read. A message may be lost, the key is what counts.
--
-- Names of replies come from payloads, so they are not among KEYS. KEY.reply is, and no such key ever
-- exists: where a slot of a Redis Cluster moves, the script is refused before it begins, not half-way.
--
-- An address is what somebody pushed. One that cannot be read is told nothing, none is kept for
-- longer than a week, and only channels of the cluster's callers are told: no address ends a script
-- half-way, or speaks to a node.
local most_kept = 604800000

-- caller takes the address of a payload apart; nil if it has none. tonumber of the embedded Redis reads
-- no number of very many digits.
local function caller(payload)
  local a, b, hi, lo = string.byte(payload, 1, 4)
  if a ~= 0 or b ~= 76 or not lo then return nil end
  local m = 5 + hi * 256 + lo
  local length = string.byte(payload, m)
  if not length or length == 0 or m + length > #payload then return nil end
  local address = string.sub(payload, m + 1, m + length)
  local token, keep, stop = string.match(address, '^r(%S+) (%d+) ()')
  if not token or stop > length then return nil end
  keep = #keep > 9 and most_kept or math.max(1, math.min(most_kept, tonumber(keep)))
  return token, keep, string.sub(address, stop)
end

local function keep_reply(name, text, ms)
  redis.call('SET', KEY.reply .. ':' .. name, text, 'PX', string.format('%.0f', ms))
end

-- tell tells the callers of these payloads the same, and returns how many there are. What it writes
-- is bounded: a long reply is kept once, and goes along with 64 KiB of messages.
local shared = 0
local function tell(payloads, reply)
  local tokens, keeps, longest, channels, told = {}, {}, 0, {}, {}
  local callers = string.sub(KEY.reply, 1, string.find(KEY.reply, '/', 1, true) - 1) .. '}:replies:'
  for i = 1, #payloads do
    local token, keep, channel = caller(payloads[i])
    if token then
      tokens[#tokens + 1], keeps[#keeps + 1] = token, keep
      longest = math.max(longest, keep)
      if string.sub(channel, 1, #callers) == callers then
        if not told[channel] then
          told[channel] = {}
          channels[#channels + 1] = channel
        end
        table.insert(told[channel], token)
      end
    end
  end
  local text, name = reply, nil
  if #tokens > 1 and #reply > 256 then
    -- A name that nothing else gets, and nobody guesses: a payload may come back from the morgue, and
    -- end in another way than those it was buried with.
    local time = redis.call('TIME')
    shared = shared + 1
    name = string.format('%s-%s%06d-%d', tokens[1], time[1], time[2], shared)
    text = 'see ' .. name
  end
  for i = 1, #tokens do keep_reply(tokens[i], text, keeps[i]) end
  if name then keep_reply(name, reply, longest) end
  local whole = #reply * #channels <= 65536
  for i = 1, #channels do
    local names = table.concat(told[channels[i]], ' ')
    redis.call('PUBLISH', channels[i], whole and names .. '\n' .. reply or names)
  end
  return #tokens
end
