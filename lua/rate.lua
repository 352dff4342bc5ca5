-- rate: may so many ids of a queue be handed out now?
--
--#keys rate
-- ARGV  1 how many  2 us per id  3 how many at once after a rest
-- Returns 0 if they may; else after how many us to ask again: nothing was taken
-- The generic cell rate algorithm (ITU-T I.371): the key has when all that was handed out is worked off at this rate (us);
-- so many more may come that it is not further away than the rest allows.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local n, step, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local off = math.min(tonumber(redis.call('GET', KEY.rate) or 0), now + burst * step) -- Redis's clock may have been set back
off = math.max(off, now) + n * step
local wait = off - burst * step - now
if wait > 0 then return math.ceil(wait) end
redis.call('SET', KEY.rate, string.format('%.0f', math.ceil(off)), 'PX', string.format('%.0f', math.ceil((off - now) / 1000) + 1))
return 0
