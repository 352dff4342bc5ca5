package protocol_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Faults made by hand, which an audit must find and a repair must mend.

// corruption is a fault made by hand. want is its kind. left means that no repair can restore the state
// that the suite expects.
type corruption struct {
	name string
	want audit.FaultKind
	id   string
	do   func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error
	fly  bool // the shard has an id f in flight, and none in quarantine
	left bool // no repair
	wait bool // a repair, once the holder's lease is gone
}

func corruptions() []corruption {
	us := float64(time.Now().Add(time.Hour).UnixMicro())
	at := func(ctx context.Context, db rdb, key, id string) error {
		return db.ZAdd(ctx, key, redis.Z{Score: us, Member: id}).Err()
	}
	return []corruption{
		{name: "record cut", want: audit.DamagedRecord, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "r", "j0 1 2").Err()
		}},
		{name: "record of another form", want: audit.DamagedRecord, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "d", "hello").Err()
		}},
		{name: "payloads cut", want: audit.DamagedRecord, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Jobs, "r", "j-1 1 2 3 0 2\n1 1:a").Err()
		}},
		{name: "dead record cut", want: audit.DamagedRecord, id: "m", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Morgue, "m", "j0 1 2").Err()
		}},
		{name: "ready without a record", want: audit.NoRecord, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "new", "new").Err()
		}},
		{name: "due without a record", want: audit.NoRecord, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Due, "new")
		}},
		{name: "record lost", want: audit.NoRecord, id: "b", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Jobs, "b").Err()
		}},
		{name: "ready entry lost", want: audit.NoEntry, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "r").Err()
		}},
		{name: "retry entry lost", want: audit.NoEntry, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZRem(ctx, k.Retry, "t").Err()
		}},
		{name: "crowded and no entry", want: audit.NoEntry, id: "s", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "s").Err()
		}},
		{name: "twice ready", want: audit.TwoPlaces, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "r").Err()
		}},
		{name: "ready and due", want: audit.TwoPlaces, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "d").Err()
		}},
		{name: "ready and blocked", want: audit.TwoPlaces, id: "b", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "b").Err()
		}},
		{name: "ready and suspect", want: audit.TwoPlaces, id: "u", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.RPush(ctx, k.Ready, "u").Err()
		}},
		{name: "tomb scheduled", want: audit.TwoPlaces, id: "x", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Due, "x")
		}},
		{name: "flying and ready", want: audit.TwoPlaces, id: "f", fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "f").Err()
		}},
		{name: "tomb without an entry", want: audit.LoneTomb, id: "lone", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.HSet(ctx, k.Jobs, "lone", "x").Err(), db.HIncrBy(ctx, k.Count, "tombs", 1).Err())
		}},
		{name: "entry to pass over lost", want: audit.StaleMark, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LRem(ctx, k.Ready, 0, "l").Err()
		}},
		{name: "ready and to be passed over", want: audit.StaleMark, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Stale, "r", 1).Err()
		}},
		{name: "nobody to be passed over", want: audit.StaleMark, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Stale, "new", 1).Err()
		}},
		{name: "entry to pass over not marked", want: audit.TwoPlaces, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Stale, "l").Err()
		}},
		{name: "to be passed over, twice ready", want: audit.TwoPlaces, id: "l", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.LPush(ctx, k.Ready, "l").Err()
		}},
		{name: "fresh, marked late", want: audit.LateMark, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "r", 1).Err()
		}},
		{name: "scheduled, marked late", want: audit.LateMark, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "d", 1).Err()
		}},
		{name: "failed, not due, marked late", want: audit.LateMark, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "t", 1).Err()
		}},
		{name: "flying, marked late", want: audit.LateMark, id: "f", fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "f", 1).Err()
		}},
		{name: "nobody, marked late", want: audit.LateMark, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Late, "new", 1).Err()
		}},
		{name: "failed and due, not marked", want: audit.LateMark, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZRem(ctx, k.Retry, "t").Err(), db.RPush(ctx, k.Ready, "t").Err())
		}},
		{name: "not put off, noted as if", want: audit.PostponedMark, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZAdd(ctx, k.Postponed, redis.Z{Score: 5, Member: "d"}).Err()
		}},
		{name: "nobody, noted as put off", want: audit.PostponedMark, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZAdd(ctx, k.Postponed, redis.Z{Score: 5, Member: "new"}).Err()
		}},
		{name: "due at another time", want: audit.WrongTime, id: "d", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZIncrBy(ctx, k.Due, 1e9, "d").Err()
		}},
		{name: "failed among the fresh", want: audit.WrongTime, id: "t", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZRem(ctx, k.Retry, "t").Err(), at(ctx, db, k.Due, "t"))
		}},
		{name: "parked without a flight", want: audit.ParkedAlone, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Parked, "r", "j-1 5 1 3 0 2\n7 3:new").Err()
		}},
		{name: "parked and no job", want: audit.ParkedAlone, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Parked, "new", "j-1 5 1 3 0 2\n7 3:new").Err()
		}},
		{name: "suspect without crashes", want: audit.SuspectUncounted, id: "u", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Crashes, "u").Err()
		}},
		{name: "crashes of nobody", want: audit.CrashLeft, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Crashes, "r", 1).Err()
		}},
		{name: "dead without a place", want: audit.DeadUnlisted, id: "m", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZRem(ctx, k.Dead, "m").Err()
		}},
		{name: "dead without a record", want: audit.DeadUnrecorded, id: "new", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return at(ctx, db, k.Dead, "new")
		}},
		{name: "state without a time", want: audit.StateUndated, id: "kept", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.ZRem(ctx, k.Statesx, "kept").Err()
		}},
		{name: "state lost", want: audit.StateLeft, id: "kept", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.States, "kept").Err()
		}},
		{name: "state of a waiting id without a time", want: audit.StateUndated, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.States, "r", "s").Err()
		}},
		{name: "note of nobody", want: audit.NoteLeft, id: "r", do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Progress, "r", "5 1\n").Err()
		}},
		{name: "tombs miscounted", want: audit.TombCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HIncrBy(ctx, k.Count, "tombs", 3).Err()
		}},
		{name: "morgue miscounted", want: audit.MorgueCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Count, "morgue").Err()
		}},
		{name: "journal miscounted", want: audit.JournalCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HIncrBy(ctx, k.Count, "runs", 5).Err()
		}},
		{name: "journal lost", want: audit.JournalCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.Del(ctx, k.Journal).Err()
		}},
		{name: "journal's list lost", want: audit.JournalCount, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.Del(ctx, k.Journalx).Err()
		}},
		{name: "journal entry of nothing", want: audit.JournalEntry, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.XAdd(ctx, &redis.XAddArgs{Stream: k.Journal, Values: []string{"hello", "world"}}).Err()
		}},
		{name: "journal line cut", want: audit.JournalEntry, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return errors.Join(db.XAdd(ctx, &redis.XAddArgs{Stream: k.Journal, Values: []string{"i", "n/1", "n", "3", "l", "d -1 0 0 0 0 9 0 0 0\nid"}}).Err(),
				db.HIncrBy(ctx, k.Count, "runs", 3).Err())
		}},
		{name: "number of the last follow-up lost", want: audit.FollowUpNumber, do: sendOn("5-0", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "", "e", "")},
		{name: "number of the last follow-up too low", want: audit.FollowUpNumber, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return errors.Join(db.HSet(ctx, k.Count, "out", 4).Err(), sendOn("5-0", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "", "e", "")(ctx, db, k))
		}},
		{name: "follow-up without an id", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "mail", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up of an empty id", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "mail", "i", "", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up without an end", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "")},
		{name: "follow-up of a number that was before", want: audit.FollowUpDamaged, do: sendOn("5-1", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up of a huge number", want: audit.FollowUpDamaged, do: sendOn("9007199254740992-0", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up to no queue", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "", "i", "u7", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up to an impossible queue", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "a b", "i", "u7", "p", "p", "s", "", "a", "", "e", "")},
		{name: "follow-up of a score that is no number", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "mail", "i", "u7", "p", "p", "s", "high", "a", "", "e", "")},
		{name: "follow-up that is due at no time", want: audit.FollowUpDamaged, do: sendOn("5-0", "q", "mail", "i", "u7", "p", "p", "s", "", "a", "soon", "e", "")},
		{name: "flight without an owner", want: audit.FlightUnowned, fly: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Claim, "instance").Err()
		}},
		{name: "payload lost of a crowd", want: audit.SpillCount, id: "s", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			one := "w1:s:" + db.HGet(ctx, k.Spillx, "w1:s:p2").Val() + "p2"
			return redo(db.ZRem(ctx, k.Spill, one).Err(), db.HDel(ctx, k.Spillx, "w1:s:p2").Err())
		}},
		{name: "score lost of a crowd", want: audit.SpillStray, id: "s", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HDel(ctx, k.Spillx, "w1:s:p2").Err()
		}},
		{name: "payload of nobody", want: audit.SpillStray, id: "zz", left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return redo(db.ZAdd(ctx, k.Spill, redis.Z{Member: "m2:zz:\x80\x00\x00\x00\x00\x00\x00\x00500000000001p"}).Err(), db.HSet(ctx, k.Spillx, "m2:zz:p", "\x80\x00\x00\x00\x00\x00\x00\x00500000000001").Err())
		}},
		{name: "flight miscounted", want: audit.FlightCount, fly: true, left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Claim, "#1", 7).Err()
		}},
		{name: "fence lost", want: audit.ClaimDamaged, left: true, wait: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.HSet(ctx, k.Claim, "fence", "soon").Err()
		}},
		{name: "a key of another type", want: audit.WrongType, left: true, do: func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
			return db.Set(ctx, k.Aside, "text", 0).Err()
		}},
	}
}

// sendOn adds an entry to the follow-ups that wait.
func sendOn(id string, values ...string) func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
	return func(ctx context.Context, db rdb, k *redisdb.ShardKeys) error {
		return db.XAdd(ctx, &redis.XAddArgs{Stream: k.Out, ID: id, Values: values}).Err()
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

// corrupted returns a shard with one fault.
func corrupted(t *testing.T, b *backend, one corruption) *rig {
	t.Helper()
	c := b.open(t)
	q := newQueue(t, c, 1)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)} // its state is broken: no check at the end
	takeLeases(t, c, "n/1", "n/2", "n/3")
	r.own(Fresh)
	if one.fly {
		r.flying("f")
	} else {
		r.everyState()
	}
	if got := linesOf(r.audit()); got != "" {
		t.Fatalf("before it is broken:\n%s", got)
	}
	r.noErr(one.do(r.ctx, c.DB().ForTests(), r.s.Keys()))
	return r
}
