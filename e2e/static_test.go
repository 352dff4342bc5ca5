//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// static are the settings of a static node.
func static(name string, of, number int) settings {
	return settings{Name: name, Of: of, Number: number, Work: 10 * time.Millisecond, HTTP: "127.0.0.1:0"}
}

// owner returns the node that owns a shard, as its claim and lease say, and "" if there is none.
func (r *rig) owner(shard int) string {
	r.t.Helper()
	owner, err := r.queue.Shard(shard).Owner(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	live, err := identity.Live(r.t.Context(), r.client.Leases())
	if err != nil {
		r.t.Fatal(err)
	}
	return live[owner.Instance].Node
}

// awaitOwners waits until each shard has the owner at its index modulo the number of owners. "" is none.
func (r *rig) awaitOwners(owners ...string) {
	r.t.Helper()
	r.await(fmt.Sprintf("the owners are %q", owners), patience, func() bool {
		for i := range r.shards {
			if r.owner(i) != owners[i%len(owners)] {
				return false
			}
		}
		return true
	})
}

// api returns the address of a node's API.
func (r *rig) api(node string) (url string) {
	r.t.Helper()
	live, err := identity.Live(r.t.Context(), r.client.Leases())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, info := range live {
		if info.Node == node {
			url = info.HTTP
		}
	}
	return url
}

// awaitAnswer waits until a node answers a request with a text.
func (r *rig) awaitAnswer(node, path, text string) {
	r.t.Helper()
	r.await(fmt.Sprintf("%s of %s has %q", path, node, text), patience, func() bool {
		answer, err := http.Get(r.api(node) + path)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(body), text)
	})
}

// TestStaticNodes runs three static nodes, which handle all jobs. One is killed, its shards stand still, and the other
// two report it. It starts again, and they go on.
func TestStaticNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 7)
	n0, n1 := r.start(static("n0", 3, 0)), r.start(static("n1", 3, 1))
	n2 := r.start(settings{Name: "n2", Split: []int{2, 5, 99}, Work: 10 * time.Millisecond, HTTP: "127.0.0.1:0"})
	feed := r.feed(realEvents(3000))
	feed.share(1, 3)
	r.awaitOwners("n0", "n1", "n2")
	r.works(n0)
	r.kill(n0)
	feed.share(2, 3)
	r.awaitOwners("", "n1", "n2")
	r.awaitAnswer("n1", "/metrics", `lowkiq_shards_unowned{queue="history"} 3`)
	r.awaitAnswer("n2", "/api/v1/status", "3 of 7 shards of queue history have no owner; static nodes take no shards but their own (n1 1 of 3, n2 by a splitter)")
	r.awaitAnswer("n2", "/api/v1/queues/history", "static nodes take no shards but their own")
	r.awaitAnswer("n1", "/readyz", "ok")
	n0 = r.start(static("n0", 3, 0))
	r.awaitOwners("n0", "n1", "n2")
	feed.finish()
	r.drained()
	for _, p := range []*process{n0, n1, n2} {
		p.terminate(patience)
	}
	r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: -1})
	r.noneFailed()
}

// TestStaticWrongNumber gives two nodes the number 0 and none the number 1. The second stands by, and takes over when
// the first freezes for longer than its lease. No id is ever with both (I1), and status reports that the shards of
// number 1 have no owner.
func TestStaticWrongNumber(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, 6)
	events := realEvents(3000)
	r.push(events[:1000]...)
	a := r.start(static("a", 3, 0))
	r.awaitOwners("a", "", "")
	b := r.start(static("b", 3, 0))
	r.leased(b, 1)
	c := r.start(static("c", 3, 2))
	r.awaitOwners("a", "", "c")
	r.awaitAnswer("b", "/readyz", "ok")
	r.awaitAnswer("a", "/metrics", `lowkiq_shards_unowned{queue="history"} 2`)
	r.awaitAnswer("b", "/api/v1/status", "2 of 6 shards of queue history have no owner; static nodes take no shards but their own (a 0 of 3, b 0 of 3, c 2 of 3)")
	if b.first() != 0 {
		t.Error("the second node of a number works while the first lives")
	}
	r.await("a has no job left", patience, func() bool { // a frozen call would end after the thaw: the stated limit of I1
		stats, err := r.client.Stats(t.Context(), r.queue.Shard(0), r.queue.Shard(3))
		return err == nil && stats[0].Jobs.Total()+stats[1].Jobs.Total() == 0
	})
	a.signal(syscall.SIGSTOP)
	r.push(events[1000:2000]...)
	r.awaitOwners("b", "", "c")
	r.works(b)
	a.signal(syscall.SIGCONT)
	r.leased(a, 2)
	b.terminate(patience)
	r.awaitOwners("a", "", "c")
	d := r.start(static("d", 3, 1))
	r.awaitOwners("a", "d", "c")
	r.push(events[2000:]...)
	r.drained()
	for _, p := range []*process{a, c, d} {
		p.terminate(patience)
	}
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}

// TestStaticRolling replaces three nodes of a cluster by static nodes, those by four static nodes, and these by nodes
// of a cluster, one after the other while jobs come. No id is ever with two processes, and none is handled twice.
func TestStaticRolling(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, 12)
	feed := r.feed(realEvents(6000))
	nodes := map[string]*process{}
	replace := func(s settings) {
		t.Helper()
		s.TTL = 6 * ttl // no lease is to run out
		if old := nodes[s.Name]; old != nil {
			old.terminate(patience)
		}
		nodes[s.Name] = r.start(s)
		r.leased(nodes[s.Name], 1)
		r.awaitAnswer(s.Name, "/readyz", "ok")
	}
	dynamic := func(name string) settings {
		return settings{Name: name, Bind: "127.0.0.1:0", Work: 10 * time.Millisecond, HTTP: "127.0.0.1:0"}
	}
	feed.share(1, 12)
	for _, name := range []string{"n0", "n1", "n2"} {
		replace(dynamic(name))
	}
	r.works(nodes["n0"])
	for i := range 3 {
		feed.share(i+2, 12)
		replace(static(fmt.Sprint("n", i), 3, i))
	}
	r.awaitOwners("n0", "n1", "n2")
	for i := range 4 {
		feed.share(i+5, 12)
		replace(static(fmt.Sprint("n", i), 4, i))
	}
	r.awaitOwners("n0", "n1", "n2", "n3")
	for i := range 3 {
		feed.share(i+9, 12)
		replace(dynamic(fmt.Sprint("n", i)))
	}
	nodes["n3"].terminate(patience)
	feed.finish()
	r.drained()
	r.await("the cluster owns all shards", patience, func() bool {
		for i := range r.shards {
			if r.owner(i) == "" {
				return false
			}
		}
		return true
	})
	for _, name := range []string{"n0", "n1", "n2"} {
		nodes[name].terminate(patience)
	}
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}
