//go:build linux

package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterHandlers runs five nodes whose handlers are child processes or an endpoint. The handlers write the
// history. One node of each kind is killed, and one leaves. The endpoint does not die, so no death explains a
// duplicate.
func TestClusterHandlers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, fleetShards)
	f := fleetOf(r, settings{Handler: "exec", Argv: []string{os.Args[0]}, Processes: 1, MaxCrashes: -1})
	endpoint := r.endpoint()
	byHTTP := func(s *settings) { s.Handler, s.URL = "http", endpoint }
	f.upAll("n1", "n2")
	for _, name := range names(5)[2:] {
		f.up(name, byHTTP)
	}
	f.balanced(patience)
	f.crash("n1", "n3")
	f.balanced(patience)
	f.leave("n4")
	f.balanced(patience)
	f.up("n1")
	f.balanced(patience)
	f.finish(judge.Config{MaxDuplicates: -1, MaxUncaused: -1})
}

// TestClusterUnreadyCommand gives one of three nodes a command that does not start. That node is not ready and says
// why, on its own /readyz and in every node's status. Within 30 s at the default ttl the others have the queue's
// shards, and all three have the shards of the other queues. No retry is spent. Once the command starts, the node gets
// its part again.
func TestClusterUnreadyCommand(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newFleet(t, settings{TTL: 6 * time.Second, MaxCrashes: -1})
	command := filepath.Join(t.TempDir(), "command")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(command+".new", []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(command+".new", command); err != nil {
			t.Fatal(err)
		}
	}
	write("#!/there/is/no/such/interpreter\n")
	const broken = "mail"
	began := time.Now()
	f.up("n1")
	f.up("n2")
	f.up("n3", func(s *settings) { s.Broken, s.Argv, s.Processes = broken, []string{command}, 1 })
	at := slices.Index(fleetQueues, broken)
	f.await("the shards of mail are with n1 and n2, and all have their part of the others", patience, func() bool {
		leases, err := f.leases()
		if err != nil {
			return false
		}
		owners := map[string]bool{}
		for _, name := range f.list() {
			owners[leases[f.nodes[name].pid()].Instance] = true
		}
		counts, _ := f.watch.spread()
		for i, of := range counts {
			if i != at && !even(of, owners) {
				return false
			}
		}
		delete(owners, leases[f.nodes["n3"].pid()].Instance)
		return even(counts[at], owners)
	})
	took := time.Since(began)
	t.Logf("the shards are elsewhere %s after the start", took.Round(time.Millisecond))
	if most := 30*time.Second + slack; took > most {
		t.Errorf("the shards were elsewhere after %s, want within %s", took, most)
	}
	url := f.lease("n3").HTTP + "/readyz"
	f.await("n3 says why it is not ready", patience, func() bool {
		reply, err := f.http.Get(url)
		if err != nil {
			return false
		}
		defer reply.Body.Close()
		text, err := io.ReadAll(reply.Body)
		return err == nil && reply.StatusCode == http.StatusServiceUnavailable &&
			strings.Contains(string(text), `the handler of queue \"mail\" is not ready: `) && strings.Contains(string(text), command)
	})
	for _, name := range []string{"n1", "n2"} {
		f.await(name+" tells of it in its status", patience, func() bool {
			status, err := f.status(name)
			return err == nil && slices.ContainsFunc(status.Warnings, func(w string) bool {
				return strings.HasPrefix(w, "the handler of queue mail on node n3 is not ready: ") && strings.Contains(w, command)
			})
		})
		f.ready(name)
	}
	write("#!/bin/sh\nexec '" + os.Args[0] + "'\n")
	f.balanced(patience)
	f.ready("n3")
	f.finish(judge.Config{MaxDuplicates: -1})
}
