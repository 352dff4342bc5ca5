-- cluster_swap: replace the cluster record, create it or delete it, if it is still what was read.
--
--#keys record
-- ARGV  1 record as read ('' if there was none)  2 new record ('' deletes it)
-- Returns 1, or 0 if the record has changed. A record that is the new one already was written by
-- this call, repeated because its answer was lost: no two records are equal.
local record = redis.call('GET', KEY.record) or ''
if record == ARGV[2] and record ~= '' then return 1 end
if record ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEY.record) else redis.call('SET', KEY.record, ARGV[2]) end
return 1
