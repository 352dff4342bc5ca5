-- read: run commands that read, all at one instant. A transaction does the same, but a full Redis refuses it. Reads
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
