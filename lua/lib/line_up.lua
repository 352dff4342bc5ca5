-- Included after lib/store.lua: puts new due ids into the line, and wakes the owner of the shard.
if #ready > 0 and redis.call('RPUSH', KEY.ready, unpack(ready)) == #ready then wake = '0' end
if wake then redis.call('PUBLISH', ARGV[4], wake) end
if joins then redis.call('PUBLISH', ARGV[4], '-1') end
