-- audit_spill: check whether entries of the spill belong to a crowded job and have both halves. Reads only.
--
--#keys jobs parked morgue spill spillx
-- ARGV  per entry: space (w or m), id, key ('' if the entry comes from spillx), payload
-- Returns one character per entry: 0 right, or gone meanwhile; 1 no field in spillx; 2 no member
--       of spill; 3 no crowded record.
--#include record
local function crowded(key, id)
  return string.byte(redis.call('HGET', key, id) or ' ', 1) == 115
end

local out = {}
for p = 1, #ARGV, 4 do
  local space, id, key, payload = ARGV[p], ARGV[p + 1], ARGV[p + 2], ARGV[p + 3]
  local prefix = space .. #id .. ':' .. id .. ':'
  local field = redis.call('HGET', KEY.spillx, prefix .. bare(payload))
  local code = '0'
  if key == '' then
    key = field
    local member = field and redis.call('ZRANGEBYLEX', KEY.spill, '[' .. prefix .. key, '+', 'LIMIT', 0, 1)[1] or ''
    local there = string.sub(member, 1, #prefix + 20) == prefix .. (field or '')
    if field and not (there and bare(string.sub(member, #prefix + 21)) == payload) then code = '2' end
  elseif not redis.call('ZSCORE', KEY.spill, prefix .. key .. payload) then
    key = false
  elseif field ~= key then
    code = '1'
  end
  if key and code == '0' then
    local owned = space == 'm' and crowded(KEY.morgue, id) or space == 'w' and (crowded(KEY.jobs, id) or crowded(KEY.parked, id))
    if not owned then code = '3' end
  end
  out[#out + 1] = code
end
return table.concat(out)
