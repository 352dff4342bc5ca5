-- Included by the pushes: a time in us as 7 bytes, big endian, as packed records begin
-- (lib/record.lua).
local function b7(us)
  local high = math.floor(us / 16777216)
  local low = us - high * 16777216
  local h = math.floor(high / 16777216)
  local m = high - h * 16777216
  return string.char(h % 256, math.floor(m / 65536), math.floor(m / 256) % 256, m % 256,
    math.floor(low / 65536), math.floor(low / 256) % 256, low % 256)
end
