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
-- The script publishes only on channels of callers. No address ends a script half-way, or reaches a node.
--
-- A payload of a workflow has the address of its member. The end of the payload is a follow-up for the workflow
-- (lib/send_on.lua): a push "<state> <member>" to id <workflow> of queue lowkiq.workflows.
--
-- Field `then` of KEY.count names the queue that gets buried and expired payloads; see claim.lua. They are passed on here
-- and nowhere else. Every script that buries a payload or drops an expired payload calls tell in the same step (I6).
--#include caller
--#include send_on

local function keep_reply(name, text, ms)
  redis.call('SET', KEY.reply .. ':' .. name, text, 'PX', string.format('%.0f', ms))
end

-- dead_to is the queue that gets dead payloads, false if there is none, and nil before it is read.
local dead_to

-- shorten cuts the error of an end to 1 KiB, because each payload of the id gets a copy. Of a Python traceback it
-- keeps the last line.
local function shorten(reply)
  local stop = string.find(reply, '\n', 1, true)
  if not stop or #reply - stop <= 1024 then return reply end
  local text = string.sub(reply, stop + 1)
  if string.sub(text, 1, 33) == 'Traceback (most recent call last)' then
    local to = #text -- a pattern would read a text of spaces once per space
    while to > 0 and string.byte(text, to) <= 32 do to = to - 1 end
    local before = to
    while before > 0 and string.byte(text, before) ~= 10 do before = before - 1 end
    text = string.sub(text, before + 1, to)
  end
  return string.sub(reply, 1, stop) .. string.sub(text, 1, 1024)
end

-- pass_on stores follow-ups for dead payloads of an id, and returns their number.
local function pass_on(payloads, reply, id)
  if dead_to == nil then dead_to = redis.call('HGET', KEY.count, 'then') or false end
  if not dead_to then return 0 end
  local ended = shorten(reply)
  for i = 1, #payloads do send_on(dead_to, id, payloads[i], '', '', ended) end
  return #payloads
end

-- tell reports the end of an id's payloads to their callers, their workflows and the queue of the rule `then`. It returns
-- the number of its reports. Its writes are bounded. It stores a long reply once, and publishes at most 64 KiB with it.
local shared = 0
local function tell(payloads, reply, id)
  local stop = string.find(reply, '\n', 1, true)
  local state = stop and string.sub(reply, 1, stop - 1) or reply
  local passed = (state == 'buried' or state == 'expired') and pass_on(payloads, reply, id) or 0
  local tokens, keeps, longest, channels, told = {}, {}, 0, {}, {}
  local callers = string.sub(KEY.reply, 1, string.find(KEY.reply, '/', 1, true) - 1) .. '}:replies:'
  for i = 1, #payloads do
    local address = address_of(payloads[i])
    local token, keep, channel
    if address then
      local call, member = parts_of(address)
      local workflow, name = string.match(member, '^f(%S+) ()')
      if workflow then
        send_on('lowkiq.workflows', workflow, state .. ' ' .. string.sub(member, name), '', '', '')
        passed = passed + 1
      end
      token, keep, channel = caller_at(call)
    end
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
  return #tokens + passed
end
