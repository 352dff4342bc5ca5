-- read: run reading commands atomically, as a transaction does. A full Redis refuses a transaction, but not this. Reads
-- only.
-- KEYS    the keys of the commands
-- ARGV    for each command the number of its words, and its words
-- Returns the replies.
local replies, at = {}, 1
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return replies
