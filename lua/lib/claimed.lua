-- Included by scripts that only the holder of the claim may run: the fence check (I1). Expects
-- KEY.claim = claim, ARGV[1] = instance, ARGV[2] = fence. Leaves the claim's fields in `claim` and
-- its key in `claim_key`. The flights of the claim are its fields #<number> = ids still in flight,
-- @<number> = since when (us).
local claim, claim_key = {}, KEY.claim
do
  local flat = redis.call('HGETALL', claim_key)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if claim.instance ~= ARGV[1] or claim.fence ~= ARGV[2] then
  return redis.error_reply('FENCED ' .. (claim.instance or 'nobody') .. ' ' .. (claim.fence or '0'))
end
