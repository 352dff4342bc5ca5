-- coalesce: push.lua for a queue whose rules let a push replace or delay waiting payloads.
--
--#keys jobs ready count due flight parked stale spill spillx since
-- ARGV  1 "m <coalesce> <quiet> <most>"; quiet and most are us, or 0 if pushes delay nothing
--       2-4 and the jobs as in push.lua, mode m
-- Returns one character per job, and errors, as push.lua does
-- Keeps I2 and I3 as push.lua does.
--
-- coalesce  all     store every payload, as push.lua does
--           latest  keep the waiting payload with the highest score; of equal scores, the last
--           once    merge a push into the waiting payload of its id
-- A payload with an address belongs to a call. It is stored as push.lua stores it, and stays, because each
-- caller gets an answer. A push joins the waiting payloads if there are more than 32 or if they are large.
-- Such payloads are calls, or older than the rule. A push may come again because its answer was lost. Then
-- its stored payload keeps its place beside calls, and the payload that it replaced does not come back (I3).
--
-- With quiet, an id that waits for no other reason is due quiet after its last push, at most `most` after
-- its first push, and never earlier than before. The key since has the time of the first push for such
-- ids, and for a while for others. A push does not delay an id that is ready, failed, postponed (nack.lua)
-- or held, or an id that was pushed with a time.
-- A push during a flight is parked and never joins the flight. So a run sees the last push.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--#include coalesce
--#include line_up
return table.concat(answer)
