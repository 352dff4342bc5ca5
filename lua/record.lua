-- Included by other scripts: the packed record of a job.
--
-- A record is the truth about an id's waiting payloads. Its first byte is its form:
--   a  7 bytes us, 2 bytes k, payload        one payload, fresh; due at us, score (us + k) / 1e6
--   e  7 bytes us, 8 bytes score, payload    one payload, fresh; due at us
--   j  "retry at count bytes errlen next\n" error, then "score len:payload" each    any job
--   s  the same head, payloads in the spill (see spill.lua)                         a crowded job
--   x  a tombstone: the job was deleted, its entry in the ready list is still there
-- In a parsed job: retry, at (us), err, n, bytes, next (place for the spill), data[], score[] (text, "%.17g").

-- Everywhere: string.byte(s, 1), never string.byte(s), which in the embedded Redis unfolds all of s.
local function f17(x) return string.format('%.17g', x) end

local function us7(s, i)
  local a, b, c, d, e, f, g = string.byte(s, i, i + 6)
  return ((a * 256 + b) * 256 + c) * 4294967296 + ((d * 256 + e) * 256 + f) * 256 + g
end

-- ieee reads a big endian double (IEEE 754 binary64; never NaN or infinite here).
local function ieee(s, i)
  local a, b, c, d, e, f, g, h = string.byte(s, i, i + 7)
  local sign = 1
  if a > 127 then sign, a = -1, a - 128 end
  local exponent = a * 16 + math.floor(b / 16)
  local mantissa = (((((b % 16 * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  if exponent == 0 then return sign * math.ldexp(mantissa, -1074) end
  return sign * math.ldexp(mantissa + 4503599627370496, exponent - 1075)
end

local function single(at, score, payload)
  return {retry = -1, at = at, err = '', n = 1, bytes = #payload, next = 2, data = {payload}, score = {score}}
end

local function head_of(rec)
  local retry, at, n, bytes, errlen, nxt, stop = string.match(rec, '^.(%S+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
  errlen = tonumber(errlen)
  return {retry = tonumber(retry), at = tonumber(at), n = tonumber(n), bytes = tonumber(bytes), next = tonumber(nxt),
    err = string.sub(rec, stop, stop + errlen - 1), data = {}, score = {}}, stop + errlen
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
  for i = 1, job.n do
    local score, len, stop = string.match(rec, '^(%S+) (%d+):()', p)
    p = stop + len
    job.score[i], job.data[i] = score, string.sub(rec, stop, p - 1)
  end
  return job
end

local function head(form, job)
  -- Not '%s': string.format ends a short string at its first zero byte.
  return form .. string.format('%d %.0f %d %d %d %d\n', job.retry, job.at, job.n, job.bytes, #job.err, job.next) .. job.err
end

local function pack(job)
  local out = {head('j', job)}
  for i = 1, job.n do
    out[i + 1] = job.score[i] .. ' ' .. #job.data[i] .. ':' .. job.data[i]
  end
  return table.concat(out)
end

-- lower compares two scores. Arithmetic reads them: tonumber of the embedded Redis does not know '1e+18'.
local function lower(x, y) return x + 0 < y + 0 end

-- merge adds the payloads of other to job: equal payloads are one, with the smallest
-- score. Retry count, error and due time of job stay.
local function merge(job, other)
  local at = {}
  for i = 1, job.n do at[job.data[i]] = i end
  for i = 1, other.n do
    local k = at[other.data[i]]
    if not k then
      job.n = job.n + 1
      job.data[job.n], job.score[job.n] = other.data[i], other.score[i]
      job.bytes = job.bytes + #other.data[i]
      at[other.data[i]] = job.n
    elseif lower(other.score[i], job.score[k]) then
      job.score[k] = other.score[i]
    end
  end
  job.next = job.n + 1
  return job
end
