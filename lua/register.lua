-- register: write a queue's entry in the registry, or read the one that is there.
--
-- KEYS  1 queues
-- ARGV  1 queue  2 the entry's JSON
-- Returns the entry that counts: the first one written.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
