-- permissions: try each command of scripts and clients, to learn whether the user may run it. No try leaves
-- a trace. SET makes the key a string, most of the other commands then fail because of its type, and DEL
-- deletes it.
-- KEYS 1: a key that nothing else uses; also the name of a channel
-- Returns the commands that fail, each with Redis's error
local key = KEYS[1]
local tries = {
  {'SET', key, 1, 'PX', 60000}, {'GET', key}, {'MGET', key}, {'EXISTS', key},
  {'PEXPIRE', key, 60000}, {'HGET', key, 'f'}, {'HMGET', key, 'f'}, {'HGETALL', key},
  {'HEXISTS', key, 'f'}, {'HSTRLEN', key, 'f'}, {'HLEN', key}, {'HSCAN', key, 0}, {'HRANDFIELD', key, 1},
  {'HSET', key, 'f', 'v'}, {'HSETNX', key, 'f', 'v'}, {'HINCRBY', key, 'f', 1}, {'HINCRBYFLOAT', key, 'f', 1},
  {'HDEL', key, 'f'}, {'LINDEX', key, 0}, {'LLEN', key}, {'LPOS', key, 'v'},
  {'LRANGE', key, 0, 0}, {'LPOP', key}, {'LPUSH', key, 'v'}, {'RPUSH', key, 'v'},
  {'LREM', key, 0, 'v'}, {'LSET', key, 0, 'v'}, {'LTRIM', key, 0, 0}, {'ZADD', key, 1, 'v'},
  {'ZCARD', key}, {'ZCOUNT', key, 0, 0}, {'ZLEXCOUNT', key, '-', '+'}, {'ZRANGE', key, 0, 0},
  {'ZREVRANGE', key, 0, 0}, {'ZRANGEBYLEX', key, '-', '+'}, {'ZRANGEBYSCORE', key, 0, 0},
  {'ZRANK', key, 'v'}, {'ZREM', key, 'v'}, {'ZREMRANGEBYLEX', key, '-', '+'}, {'ZSCAN', key, 0},
  {'ZSCORE', key, 'v'}, {'XADD', key, '*', 'f', 'v'}, {'XLEN', key}, {'XTRIM', key, 'MINID', 1}, {'XDEL', key, '1-1'}, {'XRANGE', key, '-', '+', 'COUNT', 1},
  {'XREVRANGE', key, '+', '-', 'COUNT', 1}, {'TYPE', key}, {'RENAME', key, key}, {'UNLINK', key}, {'PTTL', key}, {'SCAN', 0}, {'TIME'},
  {'PUBLISH', key, 0}, {'DEL', key},
}
local refused = {}
for _, try in ipairs(tries) do
  local reply = redis.pcall(unpack(try))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = try[1]
    refused[#refused + 1] = reply.err
  end
end
return refused
