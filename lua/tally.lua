-- tally: add the counts of a process to the figures of a queue for a day or an hour.
--
--#keys day
-- ARGV  1 time to live of the figures (ms)  then per figure: name, number to add (at most 720 figures)
-- Returns 1
-- A repeated call counts twice. A process that gets no answer may repeat it nevertheless; see internal/store/daycounts.
--
-- day is a hash of numbers by name.
for i = 2, #ARGV, 2 do
  -- A damaged field stays as it is. An error would end the script half-way, and a repeated call would add the figures
  -- before it again.
  local was = redis.call('HGET', KEY.day, ARGV[i])
  if not was or tonumber(was) then redis.call('HINCRBYFLOAT', KEY.day, ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', KEY.day, ARGV[1])
return 1
