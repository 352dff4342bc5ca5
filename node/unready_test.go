package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestUnreadiness checks that a handler counts as ready once it was ready for 2 ttl, and later after each relapse.
func TestUnreadiness(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	var u unreadiness
	now := time.Hour
	down := errors.New("down")
	step := func(after time.Duration, err error, unready, news bool) {
		t.Helper()
		now += after
		if got := u.addAnswer(now, ttl, err); got != news || (u.why != "") != unready {
			t.Errorf("%s: got reason %q, news %v; want unready %v, news %v", now, u.why, got, unready, news)
		}
	}
	step(0, nil, false, false)
	step(1, down, true, true)
	step(1, errors.New("another reason"), true, false)
	if u.why != "down" {
		t.Errorf("got reason %q, want the first one", u.why)
	}
	step(1, nil, true, false)
	step(2*ttl-1, nil, true, false)
	step(1, nil, false, true)
	for _, hold := range []time.Duration{4, 8, 16, 32, 64, 64} { // it comes back soon
		step(ttl, down, true, true)
		step(ttl, nil, true, false)
		step(ttl, down, true, false)
		step(ttl, nil, true, false)
		step(hold*ttl-1, nil, true, false)
		step(1, nil, false, true)
	}
	step(relapseTTLs*ttl, errors.New(""), true, true)
	if u.why != "it does not say why" {
		t.Errorf("got reason %q, want one in any case", u.why)
	}
	step(1, nil, true, false)
	step(2*ttl, nil, false, true)
}

func TestUnreadyTold(t *testing.T) {
	t.Parallel()
	u := readiness{ttl: time.Second}
	if u.describeUnready() != "" || u.unreadyReasons() != nil {
		t.Errorf("got %q, %v of a node without unready handlers", u.describeUnready(), u.unreadyReasons())
	}
	for i := range 5 {
		u.addAnswer(fmt.Sprint("q", i), time.Hour, errors.New(strings.Repeat("ä", 200)))
	}
	told := u.unreadyReasons()
	if got := slices.Sorted(maps.Keys(told)); len(got) != 5 || len(told["q0"]) != maxRefusalBytes || told["q4"] != "see its log" {
		t.Errorf("got %v, want five queues, the first reasons in 300 bytes, the last ones left out", told)
	}
	if got := u.describeUnready(); !strings.HasPrefix(got, `the handler of queue "q0" is not ready: ä`) || !strings.HasSuffix(got, "; so are those of 4 other queues") {
		t.Errorf("got %q", got)
	}
	u.addAnswer("q0", 2*time.Hour, nil)
	if got := u.describeUnready(); !strings.HasPrefix(got, `the handler of queue "q0" is ready again, which counts after 2s: ä`) {
		t.Errorf("got %q, want that it is ready again", got)
	}
}

// ailing is a handler that can be told to say that it cannot work.
type ailing struct {
	why   atomic.Pointer[error]
	calls atomic.Int64
}

func (a *ailing) Handle(context.Context, *lowkiq.Batch) error { a.calls.Add(1); return nil }

func (a *ailing) Ready() error {
	if why := a.why.Load(); why != nil {
		if *why == nil {
			panic("boom")
		}
		return *why
	}
	return nil
}

// memberOf is a node of a cluster with handlers of its own.
func memberOf(t *testing.T, url, name string, queues func(*Node) error) *running {
	t.Helper()
	return startQueues(t, Config{Name: name, Redis: url, TTL: shortTTL, Bind: "127.0.0.1:0"}, queues)
}

func (r *running) ownsOf(name string) int {
	if in := r.instance(); in != nil {
		return in.ownership.countShards()[name]
	}
	return -1
}

// TestUnready checks that a node whose handler cannot work is not ready, says why everywhere, and has no shards of that queue
// while another node handles it. It gets its half again after the handler is ready.
func TestUnready(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	sick := &ailing{}
	both := func(h lowkiq.Handler) func(*Node) error {
		return func(n *Node) error {
			return errors.Join(n.Handle(QueueConfig{Name: "orders", Shards: 8}, h), n.Handle(QueueConfig{Name: "mail", Shards: 8}, lowkiq.HandlerFunc(nothing)))
		}
	}
	n1, n2 := memberOf(t, srv.URL(), "n1", both(sick)), memberOf(t, srv.URL(), "n2", both(lowkiq.HandlerFunc(nothing)))
	spread := func(mail1, orders1 int) func() bool {
		return func() bool {
			return n1.ownsOf("orders") == orders1 && n2.ownsOf("orders") == 8-orders1 && n1.ownsOf("mail") == mail1 && n2.ownsOf("mail") == 8-mail1
		}
	}
	await(t, "halves", spread(4, 4))
	await(t, "n1 is ready", func() bool { return n1.Ready() == nil })
	why := errors.New("no licence")
	sick.why.Store(&why)
	marked := time.Now()
	await(t, "n1 is not ready, and says why", func() bool {
		err := n1.Ready()
		return err != nil && err.Error() == `the handler of queue "orders" is not ready: no licence`
	})
	await(t, "the shards of orders are with n2, those of mail where they were", spread(4, 0))
	t.Logf("the shards were elsewhere after %s; an idle machine needs less than 5 ttl, %s", time.Since(marked), 5*shortTTL)
	await(t, "every node's status warns", func() bool {
		status, err := n2.Cluster().Status(t.Context())
		return err == nil && slices.Contains(status.Warnings, "the handler of queue orders on node n1 is not ready: no licence")
	})
	if got := testutil.ToFloat64(n1.queues.handled["orders"].metrics.Ready()); got != 0 {
		t.Errorf("lowkiq_handler_ready is %v, want 0", got)
	}
	sick.why.Store(nil)
	mended := time.Now()
	await(t, "n1 has shards of orders again", spread(4, 4))
	if took := time.Since(mended); took < readyTTLs*shortTTL {
		t.Errorf("it had them again after %s, want 2 ttl at least, %s", took, readyTTLs*shortTTL)
	}
	await(t, "n1 is ready", func() bool { return n1.Ready() == nil })
	if got := testutil.ToFloat64(n1.queues.handled["orders"].metrics.Ready()); got != 1 {
		t.Errorf("lowkiq_handler_ready is %v, want 1", got)
	}
}

// hanging is a handler whose Ready does not return until it gets something of release.
type hanging struct {
	lowkiq.HandlerFunc
	hangs   atomic.Bool
	release chan struct{}
}

func (h *hanging) Ready() error {
	if h.hangs.Load() {
		<-h.release
	}
	return nil
}

// TestReadyHangs checks that a handler whose Ready does not return is not ready. Its node still takes its next lease and ends
// when it must. The handler is ready again once Ready answers.
func TestReadyHangs(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	sick := &hanging{HandlerFunc: nothing, release: make(chan struct{})}
	t.Cleanup(func() { close(sick.release) })
	n1 := memberOf(t, srv.URL(), "n1", func(n *Node) error { return n.Handle(QueueConfig{Name: "orders", Shards: 4}, sick) })
	await(t, "it is ready", func() bool { return n1.Ready() == nil })
	sick.hangs.Store(true)
	await(t, "it is not ready, and says why", func() bool {
		err := n1.Ready()
		return err != nil && strings.Contains(err.Error(), "its Ready method has not returned for "+shortTTL.String())
	})
	first := n1.instance()
	first.keeper.End(lowkiq.ErrLeaseLost)
	n1.next(first)
	sick.hangs.Store(false)
	sick.release <- struct{}{}
	await(t, "it is ready again", func() bool { return n1.Ready() == nil })
	sick.hangs.Store(true)
	await(t, "it hangs again", func() bool { return n1.Ready() != nil })
	n1.stop()
}

// TestUnreadyAlone checks that shards stay where no other node could take them, and that jobs are tried again and again.
func TestUnreadyAlone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	sick := &ailing{}
	why := error(nil) // it panics
	sick.why.Store(&why)
	n1 := memberOf(t, srv.URL(), "n1", func(n *Node) error { return n.Handle(QueueConfig{Name: "orders", Shards: 4}, sick) })
	await(t, "it is not ready, and says that its Ready panics", func() bool {
		err := n1.Ready()
		return err != nil && strings.Contains(err.Error(), "its Ready method panics: boom") && n1.ownsOf("orders") == 4
	})
	p := open(t, srv.URL(), 4)
	p.push(numbered("a", 0, 1)...)
	p.drained()
	if sick.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", sick.calls.Load())
	}
}
