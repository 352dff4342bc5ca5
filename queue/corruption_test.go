package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Faults made by hand: what an audit must find, and a repair mend.

// corruption is one fault made by hand. want is the kind; left says that no repair can
// bring the shard back to what the suite expects of it.
type corruption struct {
	name string
	want FaultKind
	id   string
	do   func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error
	fly  bool // the shard has an id f in flight, and none on probation
	left bool // no repair
	wait bool // a repair, once the holder's lease is gone
}

func corruptions() []corruption {
	us := float64(time.Now().Add(time.Hour).UnixMicro())
	at := func(ctx context.Context, db rdb, key, id string) error {
		return db.ZAdd(ctx, key, redis.Z{Score: us, Member: id}).Err()
	}
	return []corruption{
		{name: "record cut", want: DamagedRecord, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "r", "j0 1 2").Err()
		}},
		{name: "record of another form", want: DamagedRecord, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "d", "hello").Err()
		}},
		{name: "payloads cut", want: DamagedRecord, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "r", "j-1 1 2 3 0 2\n1 1:a").Err()
		}},
		{name: "dead record cut", want: DamagedRecord, id: "m", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Morgue, "m", "j0 1 2").Err()
		}},
		{name: "ready without a record", want: NoRecord, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "new", "new").Err()
		}},
		{name: "due without a record", want: NoRecord, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Due, "new")
		}},
		{name: "record lost", want: NoRecord, id: "b", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Jobs, "b").Err()
		}},
		{name: "ready entry lost", want: NoEntry, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "r").Err()
		}},
		{name: "retry entry lost", want: NoEntry, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZRem(ctx, k.Retry, "t").Err()
		}},
		{name: "crowded and no entry", want: NoEntry, id: "s", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "s").Err()
		}},
		{name: "twice ready", want: TwoPlaces, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "r").Err()
		}},
		{name: "ready and due", want: TwoPlaces, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "d").Err()
		}},
		{name: "ready and blocked", want: TwoPlaces, id: "b", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "b").Err()
		}},
		{name: "ready and suspect", want: TwoPlaces, id: "u", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "u").Err()
		}},
		{name: "tomb scheduled", want: TwoPlaces, id: "x", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Due, "x")
		}},
		{name: "flying and ready", want: TwoPlaces, id: "f", fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "f").Err()
		}},
		{name: "tomb without an entry", want: LoneTomb, id: "lone", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.HSet(ctx, k.Jobs, "lone", "x").Err(), db.HIncrBy(ctx, k.Count, "tombs", 1).Err())
		}},
		{name: "entry to pass over lost", want: StaleMark, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "l").Err()
		}},
		{name: "ready and to be passed over", want: StaleMark, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Stale, "r", 1).Err()
		}},
		{name: "nobody to be passed over", want: StaleMark, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Stale, "new", 1).Err()
		}},
		{name: "entry to pass over not marked", want: TwoPlaces, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Stale, "l").Err()
		}},
		{name: "to be passed over, twice ready", want: TwoPlaces, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "l").Err()
		}},
		{name: "fresh, marked late", want: LateMark, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "r", 1).Err()
		}},
		{name: "scheduled, marked late", want: LateMark, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "d", 1).Err()
		}},
		{name: "failed, not due, marked late", want: LateMark, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "t", 1).Err()
		}},
		{name: "flying, marked late", want: LateMark, id: "f", fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "f", 1).Err()
		}},
		{name: "nobody, marked late", want: LateMark, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "new", 1).Err()
		}},
		{name: "failed and due, not marked", want: LateMark, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZRem(ctx, k.Retry, "t").Err(), db.RPush(ctx, k.Ready, "t").Err())
		}},
		{name: "due at another time", want: WrongTime, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZIncrBy(ctx, k.Due, 1e9, "d").Err()
		}},
		{name: "failed among the fresh", want: WrongTime, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZRem(ctx, k.Retry, "t").Err(), at(ctx, db, k.Due, "t"))
		}},
		{name: "parked without a flight", want: ParkedAlone, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Parked, "r", "j-1 5 1 3 0 2\n7 3:new").Err()
		}},
		{name: "parked and no job", want: ParkedAlone, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Parked, "new", "j-1 5 1 3 0 2\n7 3:new").Err()
		}},
		{name: "suspect without crashes", want: SuspectUncounted, id: "u", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Crashes, "u").Err()
		}},
		{name: "crashes of nobody", want: CrashLeft, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Crashes, "r", 1).Err()
		}},
		{name: "dead without a place", want: DeadUnlisted, id: "m", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZRem(ctx, k.Dead, "m").Err()
		}},
		{name: "dead without a record", want: DeadUnrecorded, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Dead, "new")
		}},
		{name: "tombs miscounted", want: TombCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HIncrBy(ctx, k.Count, "tombs", 3).Err()
		}},
		{name: "morgue miscounted", want: MorgueCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Count, "morgue").Err()
		}},
		{name: "flight without an owner", want: FlightUnowned, fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Claim, "instance").Err()
		}},
		{name: "payload lost of a crowd", want: SpillCount, id: "s", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			one := "w1:s:" + db.HGet(ctx, k.Spillx, "w1:s:p2").Val() + "p2"
			return redo(db.ZRem(ctx, k.Spill, one).Err(), db.HDel(ctx, k.Spillx, "w1:s:p2").Err())
		}},
		{name: "score lost of a crowd", want: SpillStray, id: "s", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Spillx, "w1:s:p2").Err()
		}},
		{name: "payload of nobody", want: SpillStray, id: "zz", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZAdd(ctx, k.Spill, redis.Z{Member: "m2:zz:\x80\x00\x00\x00\x00\x00\x00\x00500000000001p"}).Err(), db.HSet(ctx, k.Spillx, "m2:zz:p", "\x80\x00\x00\x00\x00\x00\x00\x00500000000001").Err())
		}},
		{name: "flight miscounted", want: FlightCount, fly: true, left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Claim, "#1", 7).Err()
		}},
		{name: "fence lost", want: ClaimDamaged, left: true, wait: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Claim, "fence", "soon").Err()
		}},
		{name: "a key of another type", want: WrongType, left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.Set(ctx, k.Aside, "text", 0).Err()
		}},
	}
}

func redo(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// corrupted is a shard with one fault.
func corrupted(t *testing.T, b *backend, one corruption) *rig {
	t.Helper()
	c := b.open(t)
	q := newQueue(t, c, 1)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)} // its state is broken: no check at the end
	lease(t, c, "n/1", "n/2", "n/3")
	r.own(Fresh)
	if one.fly {
		r.flying("f")
	} else {
		r.everyState()
	}
	if got := r.audit().lines(); got != "" {
		t.Fatalf("before it is broken:\n%s", got)
	}
	r.no(one.do(r.ctx, c.rdb(), &r.s.keys))
	return r
}
