-- Records that a source is sealed.
--
-- KEYS[1]   the queue's prefix: the names of all keys begin with it
-- ARGV      the source and its last number
-- Returns   1
if redis.call('GET', KEYS[1] .. ':migrate:sealing') == ARGV[1] then redis.call('DEL', KEYS[1] .. ':migrate:sealing') end
return 1
