-- cluster_swap: create, replace or delete the cluster record, if it is unchanged.
--
--#keys record
-- ARGV  1 record as read ('' if there was none)  2 new record ('' deletes it)
-- Returns 1, or 0 if the record has changed. No two records are equal. If the record is the new record
-- already, this call has written it before, and its answer was lost.
local record = redis.call('GET', KEY.record) or ''
if record == ARGV[2] and record ~= '' then return 1 end
if record ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEY.record) else redis.call('SET', KEY.record, ARGV[2]) end
return 1
