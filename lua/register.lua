-- register: write the entry of a queue into the registry, or read the existing entry.
--
--#keys queues
-- ARGV  1 queue  2 the entry's JSON
-- Returns the entry that was written first.
-- It reads first, because a node must be able to start while Redis is out of memory, to drain it.
local entry = redis.call('HGET', KEY.queues, ARGV[1])
if entry then return entry end
redis.call('HSET', KEY.queues, ARGV[1], ARGV[2])
return ARGV[2]
