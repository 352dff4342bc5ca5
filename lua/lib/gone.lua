-- Included after lib/enqueue.lua and lib/sound.lua. Expects `now`, KEY.jobs, KEY.ready, KEY.due, KEY.parked.

-- gone deletes the job of an id that has left its flight. Payloads that were pushed meanwhile become a new job.
local function gone(id)
  redis.call('HDEL', KEY.jobs, id)
  local parked = redis.call('HGET', KEY.parked, id)
  if parked and readable(parked) then
    unpark(KEY.jobs, KEY.ready, KEY.due, KEY.parked, id, parked, now)
  elseif urging then
    cease(id)
  end
end
