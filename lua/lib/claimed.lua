-- Included by scripts that only the holder of the claim may run: the fence check (I1). It expects
-- ARGV[1] = instance and ARGV[2] = fence. It leaves the fields of the claim in `claim` and its key in
-- `claim_key`. Each flight has two fields in the claim: #<number> is the number of its ids that are
-- still in flight, and @<number> is the time of its pop (us).
local claim, claim_key = {}, KEY.claim
do
  local flat = redis.call('HGETALL', claim_key)
  for i = 1, #flat, 2 do claim[flat[i]] = flat[i + 1] end
end
if claim.instance ~= ARGV[1] or claim.fence ~= ARGV[2] then
  return redis.error_reply('FENCED ' .. (claim.instance or 'nobody') .. ' ' .. (claim.fence or '0'))
end
