-- Included by scripts that end payloads: replies to callers. The step that ends a payload also stores its
-- reply (I6).
--
-- A payload of a call has an address in its envelope (internal/store/envelope): r<token> <ms> <channel>.
-- The reply is the key <KEY.reply>:<token>, which lives for that many ms. It says:
--   done             the payload is done
--   done\n<result>   the payload is done, and its handler answered with this result
--   buried\n<error>  the payload is in the morgue
--   deleted          a person deleted the payload
--   expired          the payload expired before a handler got it
--   see <name>       the reply is in <KEY.reply>:<name>; calls that end together store a long reply once
-- The script also publishes "<token> ... <token>\n<reply>" on the channel. If the reply is too long, it
-- publishes the tokens alone, and the caller reads the key. A message may be lost. The key is not lost.
--
-- The names of replies come from payloads, so they are not among KEYS. KEYS has their beginning,
-- KEY.reply, which is the name of no key. It is in the same slot. So while the slot of a Redis Cluster
-- moves, Redis refuses the script at its beginning and not half-way.
--
-- Anybody who pushes can write any address. So an unreadable address gets no reply, no reply lives longer
-- than a week, and the script publishes only on channels of callers. No address ends a script half-way,
-- or reaches a node.
local most_kept = 604800000

-- caller parses the address of a payload. It returns nil if there is none. The digits are limited,
-- because tonumber of the embedded Redis does not read long numbers.
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

-- tell sends the same reply to the callers of payloads, and returns their number. Its writes are bounded:
-- it stores a long reply once, and publishes at most 64 KiB with it.
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
    -- The name is new and cannot be guessed. A payload may come back from the morgue and end in another
    -- way than the payloads that were buried with it.
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
