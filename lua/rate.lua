-- rate: which of some batches of a queue may be handed out now?
--
--#keys rate
-- ARGV  1 us per id  2 how many ids at once after a rest  3... how many ids each batch has, in the order of their turns
-- Returns {how many of the batches may, how many ids more might, after how many us to ask for the next batch, or an id}
-- The generic cell rate algorithm (ITU-T I.371): the key has when all that was handed out is worked off at this rate (us);
-- so many more may come that it is not further away than the rest allows, or a batch alone after it that is larger. The
-- first batch that may not keeps those behind it waiting.
--
-- The key is "<when> <ids>": ids of the last batch, if they are more than a rest allows. So it is known what is too far
-- away, because Redis's clock was set back, or the rate is another one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local step, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local text = redis.call('GET', KEY.rate) or ''
local when, large = string.match(text, '^(%d+) (%d+)')
local off = math.max(now, math.min(tonumber(when or 0), now + math.max(burst, tonumber(large or 0)) * step))

local n, may, wait = 1, 0, 0
for i = 3, #ARGV do
  n = tonumber(ARGV[i])
  wait = off + n * step - math.max(burst, n) * step - now
  if wait > 0 then break end
  may, off, large = may + 1, off + n * step, n > burst and n or 0
  n = 1
end
if may > 0 then
  redis.call('SET', KEY.rate, string.format('%.0f %d', math.ceil(off), large), 'PX', string.format('%.0f', math.ceil((off - now) / 1000) + 1))
end
wait = off + n * step - math.max(burst, n) * step - now
return {may, math.max(0, math.floor((now + burst * step - off) / step)), math.max(0, math.ceil(wait))}
