-- Included by scripts that end payloads: who called learns how (I6: in the step that ends it).
--
-- A payload of a call has an address in its envelope (internal/envelope): r<token> <ms> <channel>.
-- The reply is the key <KEY.reply>:<token>, kept for so many ms:
--   done            the payload is done           done\n<result>   and its handler answered this
--   buried\n<error>  it is in the morgue           deleted          a person deleted it
--   see <token>     that of another call of the same run is the same, and too long to be kept twice
-- On the channel goes "<token> ... <token>\n<reply>"; without the line break and the reply, if that
-- is too long: then it is to be read. A message may be lost, the key is what counts.

-- caller takes the address of a payload apart; nil if it has none.
local function caller(payload)
  local a, b, hi, lo = string.byte(payload, 1, 4)
  if a ~= 0 or b ~= 76 or not lo then return nil end
  local m = 5 + hi * 256 + lo
  local length = string.byte(payload, m)
  if not length or length == 0 then return nil end
  local address = string.sub(payload, m + 1, m + length)
  local token, keep, stop = string.match(address, '^r(%S+) (%d+) ()')
  if not token or stop > length then return nil end
  return token, tonumber(keep), string.sub(address, stop)
end

-- tell tells the callers of these payloads the same. What it writes is bounded: a reply is kept once,
-- and goes along with 64 KiB of messages.
local function tell(payloads, reply)
  local first, longest, others, channels, told = nil, 0, {}, {}, {}
  for i = 1, #payloads do
    local token, keep, channel = caller(payloads[i])
    if token then
      first = first or token
      if keep > longest then longest = keep end
      if token ~= first then others[#others + 1] = {token, keep} end
      if not told[channel] then
        told[channel] = {}
        channels[#channels + 1] = channel
      end
      local tokens = told[channel]
      tokens[#tokens + 1] = token
    end
  end
  if not first then return end
  redis.call('SET', KEY.reply .. ':' .. first, reply, 'PX', string.format('%.0f', longest))
  local same = #reply > 256 and 'see ' .. first or reply
  for i = 1, #others do
    redis.call('SET', KEY.reply .. ':' .. others[i][1], same, 'PX', string.format('%.0f', others[i][2]))
  end
  local short = #reply * #channels <= 65536
  for i = 1, #channels do
    local tokens = table.concat(told[channels[i]], ' ')
    redis.call('PUBLISH', channels[i], short and tokens .. '\n' .. reply or tokens)
  end
end
