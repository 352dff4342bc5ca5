package main

// Arguments of "go test". A single Redis server suffices for the promises that Redis keeps.
var (
	single  = []string{"./queue/protocol", "-run", "TestSingle|TestPushInParts|TestLostReplies"}
	shared  = []string{"./queue/protocol", "-run", "TestShared|TestPopsShare|TestLostSharedPop"}
	keeper  = []string{"./node/internal/lease"}
	runner  = []string{"./node/internal/runner"}
	owner   = []string{"./node/internal/claims"}
	planner = []string{"./rebalance/plan"}
	child   = []string{"./node/handler", "-run", "Exec"}
	api     = []string{"./web/..."}
	reshard = []string{"./queue/reshard"}
)

// mutations are in the order of I1 to I8 and of the documents.
var mutations = []mutation{
	{
		name: "fence is not compared", promise: "I1",
		file: "lua/lib/claimed.lua", test: single,
		old: "if claim.instance ~= ARGV[1] or claim.fence ~= ARGV[2] then",
		new: "if claim.instance ~= ARGV[1] then",
	},
	{
		name: "fence does not grow", promise: "I1",
		file: "lua/claim.lua", test: single,
		old: "math.max(tonumber(fence) + 1, math.floor(now / 1000))",
		new: "math.max(tonumber(fence), 1)",
	},
	{
		name: "push to an id in flight makes it ready", promise: "I1",
		file: "lua/lib/store.lua", test: single,
		old: "  local busy = in_flight[ids[i]]\n",
		new: "  local busy = false\n",
	},
	{
		name: "repeated pop takes another flight", promise: "I1, I2",
		file: "lua/pop.lua", test: single,
		old: "if number <= last then\n",
		new: "if number < last then\n",
	},
	{
		name: "shared pop does not look at the fence", promise: "I1",
		file: "lua/pop_each.lua", test: shared,
		old: "if is[1] ~= instance or is[2] ~= ARGV[p + 1] or is[3] then return 'x' end",
		new: "if is[1] ~= instance then return 'x' end",
	},
	{
		name: "repeated shared pop takes another flight", promise: "I1, I2",
		file: "lua/pop_each.lua", test: shared,
		old: "if tonumber(number) ~= tonumber(is[4] or 0) + 1 then return 'x' end",
		new: "if tonumber(number) > tonumber(is[4] or 0) + 1 then return 'x' end",
	},
	{
		name: "shared ack forgets what was pushed meanwhile", promise: "I2",
		file: "lua/pop_each.lua", test: shared,
		old: "not quiet and parked_key or nil",
		new: "nil",
	},
	{
		name: "lease is not looked at before a call", promise: "I1",
		file: "node/internal/runner/watchdog.go", test: runner,
		old: "if !c.process.MayWork() {",
		new: "if false {",
	},
	{
		name: "lease is trusted for longer than it lasts", promise: "I1",
		file: "node/internal/lease/keeper.go", test: keeper,
		old: "return time.Duration(k.lastSent.Load()) + k.ttl*7/10 }",
		new: "return time.Duration(k.lastSent.Load()) + k.ttl*13/10 }",
	},
	{
		name: "lease counts from the reply", promise: "I1",
		file: "node/internal/lease/keeper.go", test: keeper,
		old: "		k.lastSent.Store(int64(sent))\n",
		new: "		_ = sent\n		k.lastSent.Store(int64(k.now()))\n",
	},
	{
		name: "gossip alone proves a death", promise: "I1",
		file: "node/internal/claims/decide.go", test: owner,
		old: "case !holder.leased && holder.departed:",
		new: "case holder.departed:",
	},
	{
		name: "ack deletes what was pushed meanwhile", promise: "I2",
		file: "lua/lib/finish.lua", test: single,
		old: "          if later and later[i] then\n",
		new: "          if false then\n",
	},
	{
		name: "who called is not told of a deletion", promise: "each end of a called payload is told",
		file: "lua/delete.lua", test: single,
		old: "    if sound then weigh(tell(job.data, 'deleted', id), 0) end\n",
		new: "",
	},
	{
		name: "who called is not told of a burial", promise: "each end of a called payload is told",
		file: "lua/lib/morgue.lua", test: single,
		old: "  if not silent then weigh(tell(some.data, 'buried\\n' .. err, id), 0) end\n",
		new: "",
	},
	{
		name: "long reply is that of what ended later", promise: "a reply says how its payload ended",
		file: "lua/lib/tell.lua", test: single,
		old: "    name = string.format('%s-%s%06d-%d', tokens[1], time[1], time[2], shared)\n",
		new: "    name = tokens[1] .. '-'\n",
	},
	{
		name: "address of a call ends its script half-way", promise: "I6",
		file: "lua/lib/caller.lua", test: single,
		old: "math.max(1, math.min(most_kept, tonumber(keep)))",
		new: "tonumber(keep)",
	},
	{
		name: "call speaks to any channel", promise: "a payload is data",
		file: "lua/lib/tell.lua", test: single,
		old: "if string.sub(channel, 1, #callers) == callers then",
		new: "if true then",
	},
	{
		name: "late answer replaces a state", promise: "I6",
		file: "lua/complete.lua", test: single,
		old: "  if ended[number] and ended[number][id] then\n    ended[number][id] = nil\n",
		new: "  if true then\n",
	},
	{
		name: "what failed is acknowledged", promise: "I2",
		file: "node/internal/runner/complete.go", test: runner,
		old: "r.queueAcks(batch.Flight, all.Done, result)",
		new: "r.queueAcks(batch.Flight, batch.Jobs, result)",
	},
	{
		name: "batch that was not started is not put back", promise: "I2",
		file: "node/internal/runner/flights.go", test: runner,
		old: "	f.waiting = append([]flight{{batch.Flight, l.popped, l.place, batch.Jobs}}, f.waiting...)\n",
		new: "",
	},
	{
		name: "answer counts for a batch that was not read", promise: "I2",
		file: "node/handler/child_unix.go", test: child,
		old: "	if err := c.checkUnread(\"before it had read its batch\"); err != nil {\n		return err, nil\n	}\n",
		new: "",
	},
	{
		name: "recovered jobs go behind later ones", promise: "I3",
		file: "lua/lib/recover.lua", test: single,
		old: "redis.call('LPUSH', KEY.ready, id)",
		new: "redis.call('RPUSH', KEY.ready, id)",
	},
	{
		name: "an urgent id runs twice at once", promise: "I1",
		file: "lua/push_urgent.lua", test: single,
		old: "if not fresh[id] then redis.call('HSET', KEY.stale, id, 1) end",
		new: "",
	},
	{
		name: "urgency outlasts its payload", promise: "urgent ids",
		file: "lua/lib/enqueue.lua", test: single,
		old: "  if urging then outlast(id) end\n",
		new: "",
	},
	{
		name: "recovered job forgets what was parked", promise: "I2, I3",
		file: "lua/lib/recover.lua", test: single,
		old: "  if parked then redis.call('HDEL', KEY.parked, id) end\n  return record\n",
		new: "  if parked then redis.call('HDEL', KEY.parked, id) end\n  return pack(job)\n",
	},
	{
		name: "default scores do not rise", promise: "I3",
		file: "lua/lib/store.lua", test: single,
		old: "    base = base + 1\n  end\n  local busy",
		new: "  end\n  local busy",
	},
	{
		name: "a delivery is taken in twice", promise: "I2",
		file: "lua/deliver.lua", test: single,
		old: "tonumber(numbers[before + 1]) <= taken do",
		new: "tonumber(numbers[before + 1]) < taken do",
	},
	{
		name: "follow-up overtakes a refused one", promise: "I3",
		file: "lua/lib/store.lua", test: single,
		old: "  if strict and code > '1' then break end\n",
		new: "",
	},
	{
		name: "late answer stores follow-ups", promise: "I6",
		file: "lua/complete.lua", test: single,
		old: "    redis.call('HDEL', KEY.progress, id)\n    for p = q + 5",
		new: "    redis.call('HDEL', KEY.progress, id)\n  end\n  if true then\n    for p = q + 5",
	},
	{
		name: "member's end is not told", promise: "each end of a member is told",
		file: "lua/lib/tell.lua", test: single,
		old: "      if workflow then\n",
		new: "      if false then\n",
	},
	{
		name: "relay passes over follow-ups that a free target could take", promise: "I2",
		file: "node/internal/relay/relay.go", test: []string{"./node/internal/relay"},
		old: "	visits := p.freed\n",
		new: "	visits := false\n",
	},
	{
		name: "relay sends behind a refused follow-up", promise: "I3",
		file: "node/internal/relay/relay.go", test: []string{"./node/internal/relay"},
		old: "	return b != nil && !b.due\n",
		new: "	return b != nil && false\n",
	},
	{
		name: "payload overtakes a refused one", promise: "I3",
		file: "lua/lib/store.lua", test: single,
		old: "full[id] and 0 or most, most_bytes",
		new: "most, most_bytes",
	},
	{
		name: "scheduled job runs before its time", promise: "due times",
		file: "lua/pop.lua", test: single,
		old: "'-inf', string.format('%.0f', now), 'WITHSCORES'",
		new: "'-inf', '+inf', 'WITHSCORES'",
	},
	{
		name: "retry is not counted", promise: "retries end in the morgue",
		file: "lua/nack.lua", test: single,
		old: "job.retry, job.err, failed = retry, err, failed + 1",
		new: "job.err, failed = err, failed + 1",
	},
	{
		name: "crash too many before a burial", promise: "an id that kills its process ends in the morgue",
		file: "lua/lib/judge.lua", test: single,
		old: "    if max_crashes > 0 and crashes >= max_crashes and",
		new: "    if max_crashes > 0 and crashes > max_crashes and",
	},
	{
		name: "expired lease is revived", promise: "I1",
		file: "lua/lease.lua", test: []string{"./queue/protocol", "-run", "TestOutOfMemory|TestSingle"},
		old: "if redis.call('PEXPIRE', KEY.lease, ARGV[2]) == 0 then return 0 end\n",
		new: "",
	},
	{
		name: "owner dead for long keeps its shards", promise: "I4",
		file: "node/internal/claims/decide.go", test: owner,
		old: "case !holder.leased && holder.missingEver && holder.missingFor >= max(shard.ttl, holder.ttl):",
		new: "case !holder.leased && holder.missingEver && holder.missingFor < 0:",
	},
	{
		name: "plan does not spare moves", promise: "I5",
		file: "rebalance/plan/round.go", test: planner,
		old: "		r.saveMoves()\n",
		new: "",
	},
	{
		name: "page of another site may act", promise: "docs/security.md",
		file: "web/handler.go", test: api,
		old: "	return protection.Handler(next)\n",
		new: "	_ = protection\n	return next\n",
	},
	{
		name: "reshard: busy shard is frozen", promise: "I1",
		file: "lua/freeze.lua", test: reshard,
		old: "    if redis.call('EXISTS', KEY.flight) == 1 then return {'BUSY'",
		new: "    if false then return {'BUSY'",
	},
	{
		name: "reshard: shard is frozen while jobs move in", promise: "I2",
		file: "lua/freeze.lua", test: reshard,
		old: "and string.byte(number, 1) ~= 120 then return {'BUSY'",
		new: "and false then return {'BUSY'",
	},
	{
		name: "reshard: thaw ignores the number", promise: "I2",
		file: "lua/freeze.lua", test: reshard,
		old: "local is_frozen = there == mark\n",
		new: "local is_frozen = there == mark or there and step == 'thaw'\n",
	},
	{
		name: "reshard: freeze replaces a mark", promise: "I2",
		file: "lua/freeze.lua", test: reshard,
		old: "  if there then return {'OTHER', last} end\n",
		new: "",
	},
	{
		name: "reshard: shard without its mark is dropped", promise: "I2",
		file: "lua/freeze.lua", test: reshard,
		old: "  if not is_frozen or (ARGV[4] or '') ~= '' and ARGV[4] ~= at then return {'STALE', last} end\n",
		new: "",
	},
	{
		name: "reshard: closed shard is claimed", promise: "I3",
		file: "lua/claim.lua", test: reshard,
		old: "if redis.call('EXISTS', KEY.coming) == 1 then return {'CLOSED', '', fence} end\n",
		new: "",
	},
	{
		name: "reshard: open shard is closed again", promise: "I4",
		file: "lua/take.lua", test: reshard,
		old: "  if is_closed or said[2] then return {'OK', 0} end\n",
		new: "  if is_closed then return {'OK', 0} end\n",
	},
	{
		name: "reshard: scores begin below those of the parents", promise: "I3",
		file: "lua/take.lua", test: reshard,
		old: "last < tonumber(ARGV[2]) and ARGV[2] or said[1] or '0')",
		new: "said[1] or '0')",
	},
	{
		name: "reshard: fences begin below those of the parents", promise: "I1",
		file: "lua/take.lua", test: reshard,
		old: "  if tonumber(high or 0) < tonumber(ARGV[3]) then redis.call('HSET', KEY.claim, 'fence', ARGV[3]) end\n",
		new: "",
	},
	{
		name: "reshard: entry is taken without the entry before it", promise: "I2",
		file: "lua/take.lua", test: reshard,
		old: "if number > taken + 1 then return {'GAP', taken} end\n",
		new: "",
	},
	{
		name: "reshard: entry is taken twice", promise: "an ended payload does not come back",
		file: "lua/take.lua", test: reshard,
		old: "  if number > taken and (total == 0 or first + count > done) then\n",
		new: "  if true then\n",
	},
	{
		name: "reshard: shard opens before the last entry", promise: "I2",
		file: "lua/take.lua", test: reshard,
		old: "  if taken ~= tonumber(ARGV[4]) or done > 0 then return {'GAP', taken} end\n",
		new: "",
	},
	{
		name: "reshard: shard opens after one parent", promise: "I2",
		file: "lua/take.lua", test: reshard,
		old: "    if redis.call('HINCRBY', KEY.coming, 'need', -1) <= 0 then\n",
		new: "    if true then\n",
	},
	{
		name: "reshard: driver drops before all new shards are open", promise: "I2",
		file: "queue/reshard/decide.go", test: reshard,
		old: "		if f.open < f.fresh || f.over < f.old {\n",
		new: "		if f.open == 0 {\n",
	},
	{
		name: "reshard: shard that was frozen again is not copied again", promise: "I2",
		file: "queue/reshard/steps.go", test: reshard,
		old: "	if len(words) < 4 || redisdb.Int(words[0]) != at {\n",
		new: "	if len(words) < 4 {\n",
	},
	{
		name: "reshard: stalled driver takes a mark away", promise: "I2",
		file: "queue/reshard/driver.go", test: reshard,
		old: "	if err != nil || now != text {\n",
		new: "	if err != nil || now == \"\" {\n",
	},
	{
		name: "reshard: number of a cancelled attempt comes again", promise: "I2",
		file: "queue/protocol/layouts.go", test: reshard,
		old: "	highest := max(e.Layout, e.Tried)\n",
		new: "	highest := e.Layout\n",
	},
}
