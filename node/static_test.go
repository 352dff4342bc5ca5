package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/status"
)

func TestStaticConfig(t *testing.T) {
	t.Parallel()
	split := func(shards []lowkiq.Shard) []lowkiq.Shard { return shards }
	const noCluster = "a static node takes part in no cluster, so Bind, Join, Weight and GossipKeys must be empty"
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"not static", Config{}, ""},
		{"the first", Config{Of: 3}, ""},
		{"the last", Config{Of: 3, Number: 2}, ""},
		{"the only", Config{Of: 1}, ""},
		{"of its program", Config{Splitter: split}, ""},
		{"beyond the last", Config{Of: 3, Number: 3}, "number is 3, must be 0 to 2, because of is 3"},
		{"negative number", Config{Of: 3, Number: -1}, "number is -1, must be 0 to 2, because of is 3"},
		{"negative of", Config{Of: -1}, "of is -1, must be at least 1"},
		{"number alone", Config{Number: 1}, "number is 1 and of is not set; both must be set"},
		{"negative number alone", Config{Number: -1}, "number is -1 and of is not set; both must be set"},
		{"both", Config{Of: 3, Splitter: split}, "of and Splitter are set; only one of them may be set"},
		{"bind", Config{Of: 3, Bind: "127.0.0.1:0"}, noCluster},
		{"join", Config{Of: 3, Join: []string{"127.0.0.1:7946"}}, noCluster},
		{"weight", Config{Splitter: split, Weight: 2}, noCluster},
		{"keys", Config{Splitter: split, GossipKeys: [][]byte{make([]byte, 16)}}, noCluster},
	} {
		err := c.cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestStatic checks three static nodes, two by their numbers and a third by a Splitter that also names shards which do not
// exist. They handle all jobs. While a node is away its shards have no owner, and a live node reports them. They go on when
// it is back.
func TestStatic(t *testing.T) {
	url := redistest.Start(t).URL()
	p := open(t, url, 7)
	asked := make(chan []lowkiq.Shard, 1)
	third := func(shards []lowkiq.Shard) (own []lowkiq.Shard) {
		asked <- slices.Clone(shards)
		for _, s := range shards {
			if s.Index%3 == 2 {
				own = append(own, s)
			}
		}
		return append(own, lowkiq.Shard{Queue: "orders", Index: 7}, lowkiq.Shard{Queue: "mail"}, lowkiq.Shard{Queue: "orders", Index: -1})
	}
	begin := func(name string, cfg Config) *running {
		cfg.Name, cfg.Redis, cfg.TTL = name, url, shortTTL
		return start(t, cfg, QueueConfig{Shards: 7}, nothing).serving()
	}
	n0, n1, n2 := begin("n0", Config{Of: 3}), begin("n1", Config{Of: 3, Number: 1}), begin("n2", Config{Splitter: third})
	if got := []int{n0.owns(), n1.owns(), n2.owns()}; !slices.Equal(got, []int{3, 2, 2}) {
		t.Errorf("got %v shards, want 3, 2 and 2", got)
	}
	if got := receive(t, "the call of the Splitter", asked); len(got) != 7 || !slices.IsSortedFunc(got, func(x, y lowkiq.Shard) int { return x.Index - y.Index }) {
		t.Errorf("the Splitter got %v, want all shards in order", got)
	}
	p.ids("a", 50)
	p.drained()

	for share, n := range map[string]*running{"0 of 3": n0, "by a splitter": n2} {
		want := "this node is not in a cluster: it is static, " + share + ","
		if _, err := n.Cluster().Plan(t.Context(), nil, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("plan: got %v, want %q", err, want)
		}
		if _, err := n.Cluster().Members(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("members: got %v, want %q", err, want)
		}
		if _, series := scrape(t, n, "lowkiq_raft_leader"); series != 0 {
			t.Error("a node in no cluster exports a metric of the leader")
		}
	}

	n0.stop() // the others tell about it, although it was the first
	p.ids("b", 50)
	await(t, "three shards without an owner", func() bool {
		n, series := scrape(t, n1, "lowkiq_shards_unowned", "orders")
		return n == 3 && series == 1
	})
	const told = "static nodes take no shards but their own (n1 1 of 3, n2 by a splitter)"
	if now, err := n1.Cluster().Status(t.Context()); err != nil || !slices.Equal(now.Warnings, []string{"3 of 7 shards of queue orders have no owner; " + told}) {
		t.Errorf("got the warnings %q, %v", now.Warnings, err)
	}
	await(t, "the others are done", func() bool {
		shards, err := n1.Cluster().Shards(t.Context())
		return err == nil && !slices.ContainsFunc(shards, func(s status.Shard) bool { return s.State == status.Owned && s.Lag > 0 })
	})
	id := "b0"
	for i := 0; p.Of(id).Index != 0; i++ {
		id = fmt.Sprint("b", i)
	}
	if why, err := n1.Cluster().Why(t.Context(), p.Queue, id); err != nil || why.Reason != "nobody owns its shard now; "+told {
		t.Errorf("got %q, %v", why.Reason, err)
	}
	begin("n0", Config{Of: 3})
	p.drained()
	await(t, "no shard without an owner", func() bool { n, _ := scrape(t, n1, "lowkiq_shards_unowned", "orders"); return n == 0 })
}

// newSplit returns a node with a Splitter that handles the queue orders and has not started.
func newSplit(t *testing.T, redis string, splitter func([]lowkiq.Shard) []lowkiq.Shard) *Node {
	t.Helper()
	n, err := New(Config{Redis: redis, TTL: calmTTL, Splitter: splitter})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSplitterPanics checks that a panic of the Splitter ends Run with an error that names it.
func TestSplitterPanics(t *testing.T) {
	t.Parallel()
	n := newSplit(t, redistest.Start(t).URL(), func([]lowkiq.Shard) []lowkiq.Shard { panic("no plan") })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Run(ctx); err == nil || !strings.HasPrefix(err.Error(), "node: the Splitter of the node's configuration panics: no plan\n") {
		t.Errorf("got %v, want an error that names the Splitter", err)
	}
}

// TestSplitterIsAskedAgain checks that the Splitter chooses again when a queue has other shards. A panic then ends Run, too.
func TestSplitterIsAskedAgain(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ended := make(chan error, 1)
	n := newSplit(t, srv.URL(), func(shards []lowkiq.Shard) []lowkiq.Shard {
		if len(shards) == 7 {
			panic("no plan")
		}
		return shards[1:]
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { ended <- n.Run(ctx) }()
	run := &running{Node: n, t: t}
	await(t, "all shards but the first", func() bool { return run.owns() == 15 })
	first := run.instance()
	register(t, srv.Addr(), "orders", `{"shards":5,"layout":2}`)
	run.renew()
	await(t, "all present shards but the first", func() bool { return run.owns() == 4 && first.claims.Get(lowkiq.Shard{Queue: "orders"}) == nil })
	register(t, srv.Addr(), "orders", `{"shards":7,"layout":3}`)
	first.keeper.RenewNow()
	if err := receive(t, "the node's end", ended); err == nil || !strings.HasPrefix(err.Error(), "node: the Splitter of the node's configuration panics: no plan\n") {
		t.Errorf("got %v, want an error that names the Splitter", err)
	}
}
