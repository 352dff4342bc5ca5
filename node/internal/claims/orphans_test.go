package claims

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestMismatch checks that the claims of a queue with a wrong sum are read more and more rarely.
func TestMismatch(t *testing.T) {
	t.Parallel()
	w := &orphanScanner[*worker]{mismatches: map[string]*mismatch{}}
	var read []int
	for look := range 40 {
		if w.shouldRead("q") {
			read = append(read, look)
		}
	}
	if want := []int{1, 3, 7, 15, 31}; !slices.Equal(read, want) {
		t.Errorf("claims were read at looks %v, want %v", read, want)
	}
}

// unreleased is a Redis whose releases fail with err.
type unreleased struct {
	Redis
	err error
}

func (*unreleased) Claim(_ context.Context, s *protocol.Shard, instance string, _ protocol.Cause, _ protocol.Owner) (*protocol.Claim, error) {
	return &protocol.Claim{Shard: s, Instance: instance, Recovered: 7}, nil
}

func (r *unreleased) Release(context.Context, *protocol.Claim) error { return r.err }

// TestRecoveredIsLoggedOnce checks that a shard that could not be released counts as not recovered.
func TestRecoveredIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	redis := &unreleased{err: errLost}
	c := New(Process[*worker]{
		Instance: "me/B.1", Redis: redis, Log: slog.New(slog.NewTextHandler(&text, nil)), Now: clock,
		Shard: func(lowkiq.Shard) *protocol.Shard { return nil }, OpFailed: func(string, any, error) {},
	}, NewAbsentInstances(clock))
	w := &orphanScanner[*worker]{c: c, recovering: map[lowkiq.Shard]*protocol.Shard{}}
	s := ghost
	try := func() {
		w.recoverShard(t.Context(), s, protocol.Owner{Instance: "me/B.1", Fence: 3}, map[string]holderState{})
	}
	try()
	if text.Len() > 0 || w.recovering[ghost.Shard] == nil {
		t.Errorf("logged %q, still to be recovered %v; want nothing, and that it is", text.String(), w.recovering)
	}
	redis.err = nil
	try()
	if got := text.String(); strings.Count(got, "recovered a shard") != 1 || len(w.recovering) > 0 {
		t.Errorf("logged %q, still to be recovered %v; want one line, and nothing", got, w.recovering)
	}
}

// TestSumsOfLeases checks that the leases of all nodes are added up, queue by queue.
func TestSumsOfLeases(t *testing.T) {
	t.Parallel()
	handled, owned := sumLeases([]identity.Lease{
		{Queues: map[string]int{"orders": 3, "mail": 0}}, {Queues: map[string]int{"orders": 2}},
	})
	if !handled["mail"] || handled["ghost"] || owned["orders"] != 5 || owned["mail"] != 0 {
		t.Errorf("got handled %v, owned %v", handled, owned)
	}
}

// TestEachScanIsReported checks that each scan looks for follow-ups of orphaned shards, also if it reads no claims.
func TestEachScanIsReported(t *testing.T) {
	t.Parallel()
	c := New(Process[*worker]{Instance: "me/B.1", Now: clock, MayWork: func() bool { return true }}, NewAbsentInstances(clock))
	leads, scans := true, 0
	w := &orphanScanner[*worker]{c: c, mismatches: map[string]*mismatch{"ghost": {scansLeft: 16, pause: 16}}, exported: map[string]bool{}, o: OrphanScan{
		Leads:  func(context.Context) ([]identity.Lease, bool) { return nil, leads },
		Queues: func() map[string]int { return map[string]int{"ghost": 4} },
		Shards: func(context.Context, string) ([]*protocol.Shard, error) {
			t.Error("the claims are read")
			return nil, nil
		},
		Resign: func() {}, Scanned: func() { scans++ },
	}}
	for range 10 {
		w.scanOnce(t.Context())
	}
	leads = false
	w.scanOnce(t.Context())
	if scans != 10 {
		t.Errorf("got %d scans reported, want 10", scans)
	}
}
