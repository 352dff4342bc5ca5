//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
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

// TestStaticNodes: three static nodes handle all jobs. One is killed, its shards stand still, and the other two tell
// about it. It starts again, and they go on.
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
