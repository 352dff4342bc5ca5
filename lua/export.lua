-- export: remove jobs that another system has taken over, each only if it is unchanged, and remember them.
--
--#keys jobs ready due retry blocked flight parked crashes suspects count spill spillx stale late postponed urgent
--#keys morgue dead from
-- ARGV  1 the run  then for each id (at most 250): id, number, kind (w: waiting, m: in the morgue), record as read
-- Returns one character per id: 0 removed  + a piece was removed; read the rest  c changed since it was read
--           f in flight  b blocked or held  - no job
--         If there are fewer characters than ids, the caller sends the rest again.
-- Errors: OVER another run has begun
--
-- Field export of from is the run that may export. Field export NUL <kind> <id> is the number under which the
-- other system has stored the job. After the job, or a piece of it, is removed here, the id belongs to that
-- system. The client removes the field.
if redis.call('HGET', KEY.from, 'export') ~= ARGV[1] then return redis.error_reply('OVER another run takes jobs out') end

--#include record
--#include sound
--#include spill
--#include waiting
--#include measure
--#include forget

-- crop removes a piece of the waiting job, or all of it. It returns the character of the answer.
local function crop(id, record)
  weigh_record(record)
  if string.byte(record, 1) == 115 then
    local job = parse(record)
    local piece = spill_take(KEY.spill, KEY.spillx, 'w', id, job)
    weigh(piece.n, piece.bytes)
    if job.n > 0 then
      redis.call('HSET', KEY.jobs, id, head('s', job))
      return '+'
    end
  end
  remove(id, false)
  return '0'
end

local function export(id, kind, known)
  if kind == 'm' then
    local record = redis.call('HGET', KEY.morgue, id)
    if not record then return '-' end
    if record ~= known then return 'c' end
    local _, more = forget(id, record)
    return more and '+' or '0'
  end
  local record = redis.call('HGET', KEY.jobs, id)
  if not record or record == 'x' then return '-' end
  if redis.call('LPOS', KEY.flight, id) then return 'f' end
  if record ~= known then return 'c' end
  if redis.call('ZSCORE', KEY.blocked, id) or is_held(redis.call('ZSCORE', KEY.due, id)) or is_held(redis.call('ZSCORE', KEY.retry, id)) then return 'b' end
  return crop(id, record)
end

local answer = {}
for i = 2, #ARGV, 4 do
  local id, kind = ARGV[i], ARGV[i + 2]
  local code = export(id, kind, ARGV[i + 3])
  if code == '0' or code == '+' then redis.call('HSET', KEY.from, 'export\0' .. kind .. id, ARGV[i + 1]) end
  answer[#answer + 1] = code
  weigh_id()
  if enough() then break end
end
return table.concat(answer)
