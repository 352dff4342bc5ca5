-- Included by other scripts: the packed record of a job.
--
-- A record holds the waiting payloads of an id. Its first byte is its form:
--   a  7 bytes us, 2 bytes k, payload        a new job with one payload; due at us, score (us + k) / 1e6
--   e  7 bytes us, 8 bytes score, payload    a new job with one payload; due at us
--   j  "retry at count bytes errlen next\n" error, then "score len:payload" for each payload    any job
--      For a postponed job the line ends with " since group".
--   s  the head of j, with " shift" before " since group"; its payloads are in the spill    a crowded job
--   p  the head of j, error, then "key" (20 bytes, see lib/spill.lua), 4 bytes length and the payload
--      for each payload, in the order of the keys    the part of a crowded job that is in flight
--   x  a tombstone: the job was deleted, and its entry in the ready list is still there
-- A parsed job has the fields retry, at (us), err, n, bytes, next (the next place in the spill) and
-- data[]. Each payload has a score[] (text, "%.17g") or, in form p, a key[]. A job of form s has
-- shift, and no payloads.
--
-- A job may run at the time at. It has waited since that time, unless it was postponed: by its
-- handler, its group, a hold, or a person who cancelled its run. Then since (us) keeps the time at
-- which it began to wait, however often at moves, until the job fails or comes back from the morgue.
-- group is 1 if its group postponed it last, else 0. The key postponed has the since of all postponed
-- ids that are neither blocked nor held.
--
-- A payload may be in an envelope (internal/store/envelope):
--   00 4C, 2 bytes n, n bytes of headers, 1 byte m, m bytes of address, data
-- Outside of flights a record is at most as large as lib/spill.lua allows, or it has a single payload
-- of at most 16 KiB (push.go).

-- All scripts call string.byte(s, 1). In the embedded Redis string.byte(s) returns every byte of s.
local function f17(x) return string.format('%.17g', x) end

local function us7(s, i)
  local a, b, c, d, e, f, g = string.byte(s, i, i + 6)
  return ((a * 256 + b) * 256 + c) * 4294967296 + ((d * 256 + e) * 256 + f) * 256 + g
end

-- double decodes the 8 bytes of a big endian double (IEEE 754 binary64). Scores are never NaN or
-- infinite.
local function double(a, b, c, d, e, f, g, h)
  local sign = 1
  if a > 127 then sign, a = -1, a - 128 end
  local exponent = a * 16 + math.floor(b / 16)
  local mantissa = (((((b % 16 * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  if exponent == 0 then return sign * math.ldexp(mantissa, -1074) end
  return sign * math.ldexp(mantissa + 4503599627370496, exponent - 1075)
end

local function ieee(s, i) return double(string.byte(s, i, i + 7)) end

-- rank encodes a score in 8 bytes that sort as the scores do. It is the big endian double, with the
-- sign bit set if the score is positive, and with all bits inverted if it is negative.
local function rank(score)
  local x = score + 0
  if x == 0 then return string.char(128, 0, 0, 0, 0, 0, 0, 0) end
  local m, e = math.frexp(math.abs(x))
  e = e + 1022
  local mantissa
  if e > 0 then mantissa = (m * 2 - 1) * 4503599627370496 else mantissa, e = math.ldexp(m, e + 52), 0 end
  local high = math.floor(mantissa / 4294967296)
  local low = mantissa - high * 4294967296
  local mid = math.floor(low / 65536)
  low = low - mid * 65536
  local a, b = math.floor(e / 16), e % 16 * 16 + math.floor(high / 65536)
  local c, d = math.floor(high / 256) % 256, high % 256
  local f, g, h, i = math.floor(mid / 256), mid % 256, math.floor(low / 256), low % 256
  if x > 0 then return string.char(a + 128, b, c, d, f, g, h, i) end
  return string.char(127 - a, 255 - b, 255 - c, 255 - d, 255 - f, 255 - g, 255 - h, 255 - i)
end

-- ranked decodes the result of rank.
local function ranked(s)
  local a, b, c, d, e, f, g, h = string.byte(s, 1, 8)
  if a > 127 then return double(a - 128, b, c, d, e, f, g, h) end
  return -double(127 - a, 255 - b, 255 - c, 255 - d, 255 - e, 255 - f, 255 - g, 255 - h)
end

local function single(at, score, payload)
  return {retry = -1, at = at, err = '', n = 1, bytes = #payload, next = 2, shift = 0, data = {payload}, score = {score}}
end

local function head_of(rec)
  local retry, at, n, bytes, errlen, nxt, stop, shift, since, group
  if string.byte(rec, 1) == 115 then
    retry, at, n, bytes, errlen, nxt, shift, stop = string.match(rec, '^.(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
    if not stop then
      retry, at, n, bytes, errlen, nxt, shift, since, group, stop =
        string.match(rec, '^.(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
    end
  else
    retry, at, n, bytes, errlen, nxt, stop = string.match(rec, '^.(%S+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
    if not stop then
      retry, at, n, bytes, errlen, nxt, since, group, stop = string.match(rec, '^.(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
    end
  end
  errlen = tonumber(errlen)
  return {retry = tonumber(retry), at = tonumber(at), n = tonumber(n), bytes = tonumber(bytes), next = tonumber(nxt),
    shift = tonumber(shift or 0), since = since and tonumber(since), group = tonumber(group or 0), err = string.sub(rec, stop, stop + errlen - 1), data = {}, score = {}}, stop + errlen
end

-- has_failed reports whether the retry count of a readable record is at least 0. Such a record has a
-- head, and the head does not begin with '-'.
local function has_failed(rec)
  local form, first = string.byte(rec, 1, 2)
  return (form == 106 or form == 115 or form == 112) and first ~= nil and first ~= 45
end

-- since_of returns the since (us) of a readable record, or nil if the job was not postponed.
local function since_of(rec)
  local since
  if string.byte(rec, 1) == 115 then
    since = string.match(rec, '^s%S+ %d+ %d+ %d+ %d+ %d+ %d+ (%d+) %d+\n')
  else
    since = string.match(rec, '^[jp]%S+ %d+ %d+ %d+ %d+ %d+ (%d+) %d+\n')
  end
  return since and tonumber(since)
end

-- put_off postpones a job. The time when it began to wait stays.
local function put_off(job, at, group)
  job.since = job.since or job.at
  job.at, job.group = at, group
end

local function parse(rec)
  local form = string.sub(rec, 1, 1)
  if form == 'a' then
    local at = us7(rec, 2)
    local hi, lo = string.byte(rec, 9, 10)
    return single(at, f17((at + hi * 256 + lo) / 1000000), string.sub(rec, 11))
  elseif form == 'e' then
    return single(us7(rec, 2), f17(ieee(rec, 9)), string.sub(rec, 17))
  end
  local job, p = head_of(rec)
  if form == 's' then return job end
  if form == 'p' then
    job.key = {}
    for i = 1, job.n do
      local a, b, c, d = string.byte(rec, p + 20, p + 23)
      job.key[i] = string.sub(rec, p, p + 19)
      local stop = p + 24 + ((a * 256 + b) * 256 + c) * 256 + d
      job.data[i], p = string.sub(rec, p + 24, stop - 1), stop
    end
    if p > #rec + 1 then error('a record that ends early') end
    return job
  end
  for i = 1, job.n do
    local score, len, stop = string.match(rec, '^(%S+) (%d+):()', p)
    p = stop + len
    job.score[i], job.data[i] = score, string.sub(rec, stop, p - 1)
  end
  return job
end

local function head(form, job)
  local stop = job.since and string.format(' %.0f %d\n', job.since, job.group) or '\n'
  if form == 's' then stop = string.format(' %.0f', job.shift) .. stop end
  -- Not '%s': string.format ends a short string at its first zero byte.
  return form .. string.format('%d %.0f %d %d %d %.0f', job.retry, job.at, job.n, job.bytes, #job.err, job.next) .. stop .. job.err
end

-- joined is table.concat in parts, because the Lua of the embedded Redis puts all parts on a stack of
-- 5,120 places.
local function joined(list)
  if #list <= 1000 then return table.concat(list) end
  local parts = {}
  for i = 1, #list, 1000 do parts[#parts + 1] = table.concat(list, '', i, math.min(#list, i + 999)) end
  return table.concat(parts)
end

local function pack(job)
  if job.key then
    local out, k = {head('p', job)}, 1
    for i = 1, job.n do
      local n = #job.data[i]
      out[k + 1] = job.key[i]
      out[k + 2] = string.char(math.floor(n / 16777216), math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
      out[k + 3] = job.data[i]
      k = k + 3
    end
    return joined(out)
  end
  local out = {head('j', job)}
  for i = 1, job.n do
    out[i + 1] = job.score[i] .. ' ' .. #job.data[i] .. ':' .. job.data[i]
  end
  return joined(out)
end

-- bare returns a payload without its headers. Two payloads are equal if their bare forms are equal.
-- Data that begins like an envelope is stored in an envelope without headers and address. An envelope
-- that was cut short by damage equals only itself.
local function bare(payload)
  local a, b, hi, lo = string.byte(payload, 1, 4)
  if a ~= 0 or b ~= 76 or not lo then return payload end
  local m = 5 + hi * 256 + lo
  local data, length = m + 1, string.byte(payload, m)
  if not length or m + length > #payload then return payload end
  if length == 0 then
    local x, y = string.byte(payload, data, data + 1)
    if x ~= 0 or y ~= 76 then return string.sub(payload, data) end
  end
  return '\0L\0\0' .. string.sub(payload, m)
end

-- lower reports whether score x is lower than y. It converts them by arithmetic, because tonumber of
-- the embedded Redis does not read '1e+18'.
local function lower(x, y) return x + 0 < y + 0 end

-- lessen gives payload k of a job a smaller score. The payload moves to the place that a push with
-- that score would have given it.
local function lessen(job, k, score)
  local payload = table.remove(job.data, k)
  table.remove(job.score, k)
  job.data[job.n], job.score[job.n] = payload, score
end

-- find returns the index of the payload that equals the given one, or nil.
local function find(job, payload)
  local what = bare(payload)
  for i = 1, job.n do
    local data = job.data[i]
    if data == what or string.byte(data, 1) == 0 and bare(data) == what then return i end
  end
end

-- merge adds the payloads of other to job; both have form j. Equal payloads become a single payload
-- with the smaller score and the headers that it has in job. Retry count, error and due time of job
-- stay.
local function merge(job, other)
  for i = 1, other.n do
    local k = find(job, other.data[i])
    if not k then
      job.n = job.n + 1
      job.data[job.n], job.score[job.n] = other.data[i], other.score[i]
      job.bytes = job.bytes + #other.data[i]
    elseif lower(other.score[i], job.score[k]) then
      lessen(job, k, other.score[i])
    end
  end
  job.next = job.n + 1
  return job
end
