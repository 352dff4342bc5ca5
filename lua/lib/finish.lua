-- Included after lib/take_out.lua and lib/enqueue.lua: acks.

-- finish deletes handled jobs. Payloads that were pushed to them meanwhile become jobs, due at the later
-- of their due time and now. ARGV from p to stop holds groups of flight, count and ids; count 0 stands
-- for all ids of the flight. finish returns the number of handled ids, and how many of them wait again.
-- parked_key and crashes_key are nil if these keys do not exist.
local function finish(jobs_key, ready_key, due_key, flight_key, parked_key, crashes_key, count_key, p, stop)
  local done, again = 0, 0
  local time
  while p <= stop do
    local number, k = ARGV[p], tonumber(ARGV[p + 1])
    local ids
    if k == 0 then
      ids = take_out_all(flight_key, crashes_key, number)
    else
      ids = take_out(flight_key, crashes_key, number, {unpack(ARGV, p + 2, p + 1 + k)})
    end
    p = p + 2 + k
    if #ids > 0 then
      done = done + #ids
      redis.call('HDEL', jobs_key, unpack(ids))
      local later = parked_key and redis.call('EXISTS', parked_key) == 1 and redis.call('HMGET', parked_key, unpack(ids))
      if later or urging then
        for i = 1, #ids do
          if later and later[i] then
            if not time then time = redis.call('TIME') end
            again = again + 1
            unpark(jobs_key, ready_key, due_key, parked_key, ids[i], later[i], time[1] * 1000000 + time[2])
          elseif urging then
            cease(ids[i])
          end
        end
      end
    end
  end
  if done > 0 then redis.call('HINCRBY', count_key, 'processed', done) end
  return done, again
end
