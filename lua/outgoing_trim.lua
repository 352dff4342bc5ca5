-- outgoing_trim: remove follow-ups that are delivered, or that a person drops.
--
--#keys out
-- ARGV  numbers of follow-ups (at most 1,000)
-- Returns {follow-ups that were removed, follow-ups that wait}. A repeated call removes nothing.
local gone = 0
for i = 1, #ARGV do gone = gone + redis.call('XDEL', KEY.out, ARGV[i] .. '-0') end
local left = redis.call('XLEN', KEY.out)
if left == 0 then redis.call('DEL', KEY.out) end -- field out of count keeps the last number
return {gone, left}
