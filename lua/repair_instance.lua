-- repair_instance: forget an instance whose lease is gone.
--
-- KEYS  1 lease  2 instances
-- ARGV  1 instance
-- Returns 1, or 0 if it has a lease or is not in the index.
-- An expired lease never returns, so nothing can go wrong after the caller saw that no claim names it.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
return redis.call('HDEL', KEYS[2], ARGV[1])
