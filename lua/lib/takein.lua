-- Included after lib/spill.lua and lib/measure.lua by scripts that take in jobs of another place: import, take. Such a job
-- comes in parts. A part has the fields
--   id, total (payloads of the job), first (payloads in the parts before this part), count (payloads in this part)
--   skip (how many of them are stored already), base (first place of the job in the spill, 0 if it has none yet)

-- weigh_spill adds the cost of payloads that go to the spill. Each is looked up, and written twice.
local function weigh_spill(id, n, bytes) weigh(n, bytes + 2 * n * #id) end

-- lay puts the payloads of a part into the spill, before the payloads that are there. These were pushed here meanwhile, so
-- they are younger. The first part of a job reserves the places of all its parts. Otherwise a later part would stand before
-- an earlier part (I3).
local function lay(space, part, job, there, from)
  weigh_spill(part.id, job.n, job.bytes)
  local all = there or {n = 0, bytes = 0, next = from, shift = 0}
  all.retry, all.at, all.since, all.group, all.err = job.retry, job.at, job.since, job.group, job.err
  if there and not there.crowded then
    spill_open(KEY.spill, KEY.spillx, space, part.id, all, from)
  end
  if part.base == 0 then
    all.next = all.next + part.total
    part.base = spill_middle - all.next + 1
  end
  local place = part.base + part.first + part.skip
  all.next = math.max(all.next, spill_middle - part.base + 1, place + job.n - spill_middle + 1)
  spill_put(KEY.spill, KEY.spillx, space, part.id, all, keyed(job, place), true)
  return head('s', all)
end

-- unite returns the record of the job that is there, with the payloads of a part, which come first among equal scores.
-- there is nil, or the parsed record with the field crowded.
local function unite(space, part, job, there, record, from)
  if part.total == part.count and not (there and there.crowded) then
    local n, bytes = job.n + (there and there.n or 0), job.bytes + (there and there.bytes or 0)
    if not spill_small(n, bytes) then weigh_spill(part.id, n, bytes) end
    if there then weigh(math.floor(job.n * there.n / 32), 0) end -- each payload is compared with each
    return spill_join(KEY.spill, KEY.spillx, space, part.id, job, record or nil, from)
  end
  return lay(space, part, job, there, from)
end
