-- Included by scripts that read who waits for the end of a payload.
--
-- The address in the envelope of a payload (internal/store/envelope) has one part or two, with the byte 31 between:
--   r<token> <ms> <channel>   a call waits for the reply; see lib/tell.lua
--   f<workflow> <member>      a workflow waits for its member; see lib/tell.lua
--
-- Anybody who pushes can write the address of any call. So an unreadable address gets no reply, and no reply lives
-- longer than a week. Only nodes write the addresses of members.
local most_kept = 604800000

-- address_of returns the address of a payload, or nil if there is none.
local function address_of(payload)
  local a, b, hi, lo = string.byte(payload, 1, 4)
  if a ~= 0 or b ~= 76 or not lo then return nil end
  local m = 5 + hi * 256 + lo
  local length = string.byte(payload, m)
  if not length or length == 0 or m + length > #payload then return nil end
  return string.sub(payload, m + 1, m + length)
end

-- parts_of returns the call and the member in an address, '' for a part that is missing.
local function parts_of(address)
  local stop = string.find(address, '\31', 1, true)
  if stop then return string.sub(address, 1, stop - 1), string.sub(address, stop + 1) end
  if string.byte(address, 1) == 102 then return '', address end
  return address, ''
end

-- caller_at returns token, time to keep the reply (ms) and channel of a call, or nil if the text is no call. It limits the
-- digits, because tonumber of the embedded Redis does not read long numbers.
local function caller_at(call)
  local token, keep, stop = string.match(call, '^r(%S+) (%d+) ()')
  if not token or stop > #call then return nil end
  keep = #keep > 9 and most_kept or math.max(1, math.min(most_kept, tonumber(keep)))
  return token, keep, string.sub(call, stop)
end
