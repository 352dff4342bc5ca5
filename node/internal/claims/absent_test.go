package claims

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// TestMissing checks that the time begins when the lease is first seen missing. It begins anew if the lease is seen
// again, for example after a wrong answer.
func TestMissing(t *testing.T) {
	t.Parallel()
	now := time.Hour
	a := NewAbsentInstances(func() time.Duration { return now })
	for _, step := range []struct {
		after  time.Duration
		leased bool
		want   time.Duration
		ever   bool
	}{{0, true, 0, false}, {0, false, 0, true}, {time.Hour, false, time.Hour, true}, {0, true, 0, false}, {time.Hour, false, 0, true}} {
		now += step.after
		if got, ever := a.missingFor("x", step.leased); got != step.want || ever != step.ever {
			t.Errorf("%+v: missing for %s, %v", step, got, ever)
		}
	}
}

// index is a Redis with an index of instances and nothing else.
type index struct {
	Redis
	list []lease.Instance
}

func (r *index) Instances(context.Context) ([]lease.Instance, error) { return r.list, nil }

func (r *index) DropLease(_ context.Context, name string) error {
	var left []lease.Instance
	for _, i := range r.list {
		if i.Name != name {
			left = append(left, i)
		}
	}
	r.list = left
	return nil
}

// TestPrune checks that the index forgets instances without a lease after a while, and no others. The index is read
// every pruneEvery at most.
func TestPrune(t *testing.T) {
	t.Parallel()
	now, gone := time.Hour, false
	id := []byte(`{"host":"h","pid":7,"start":"1","ttl_ms":3000}`)
	redis := &index{list: []lease.Instance{
		{Name: "dead/X.1", Identity: id}, {Name: "me/B.1", Identity: id, Lease: []byte("{}")}, {Name: "lives/X.1", Identity: id, Lease: []byte("{}")},
	}}
	absent := NewAbsentInstances(func() time.Duration { return now })
	c := New(Process[*worker]{
		Instance: "me/B.1", Redis: redis, Log: slog.New(slog.DiscardHandler), Now: func() time.Duration { return now },
		Prunes: func() bool { return true }, IsGone: func(identity.Process) bool { return gone },
	}, absent)
	look := func(after time.Duration, want int) {
		t.Helper()
		now += after
		c.pruneIndex(t.Context())
		if got := len(redis.list); got != want {
			t.Errorf("%d instances are listed, want %d", got, want)
		}
	}
	look(0, 3)
	look(minForgetAfter, 3)
	gone = true // now it is proven, and pruneEvery has not passed
	look(pruneEvery-1, 3)
	look(1, 2)
	if len(absent.missingSince) != 0 {
		t.Errorf("remembered as without lease: %v, want none", absent.missingSince)
	}
	absent.missingSince["no longer listed/X.1"], absent.goneAt["no longer listed/X.1"] = now, now
	look(maxForgetAfter+pruneEvery, 2)
	if len(absent.missingSince)+len(absent.goneAt) > 0 {
		t.Errorf("remembered after %s: %v, %v", maxForgetAfter, absent.missingSince, absent.goneAt)
	}
}

// TestForgettable checks that an instance with a long ttl is remembered for longer, and none for ever.
func TestForgettable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		missing, ttl time.Duration
		proven, want bool
	}{
		{pruneAfter, 6 * time.Second, true, false},
		{pruneAfter + 1, 6 * time.Second, true, true},
		{minForgetAfter, 6 * time.Second, false, false},
		{minForgetAfter + 1, 6 * time.Second, false, true},
		{minForgetAfter + 1, 2 * time.Minute, false, false},
		{20*time.Minute + 1, 2 * time.Minute, false, true},
		{maxForgetAfter + 1, 1000 * time.Hour, false, true},
		{0, 0, false, false},
	} {
		if got := isForgettable(tt.missing, tt.ttl, tt.proven); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

// TestLastOwner makes Redis lose a process's claim with its lease. Another instance takes the shard, and Redis loses
// everything again. The first process was not the shard's last owner.
func TestLastOwner(t *testing.T) {
	t.Parallel()
	s, a := lowkiq.Shard{Queue: "q"}, NewAbsentInstances(clock)
	for lost, want := range []bool{true, true, false} {
		if lost > 0 {
			a.LeaseLost(ttl)
		} else {
			a.setLastOwner(s)
		}
		if got := a.isLastOwner(s); got != want {
			t.Errorf("after %d lost leases: last owner %v, want %v", lost, got, want)
		}
	}
}
