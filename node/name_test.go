package node

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestUnnamed checks that five unnamed nodes that start at once on a host get five names. A node that starts after the first
// node has gone gets its name at once.
func TestUnnamed(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	url := redistest.Start(t).URL()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*running
	for range 5 {
		nodes = append(nodes, startMember(t, Config{Redis: url, TTL: calmTTL}, 4))
	}
	want := []string{host, host + "-2", host + "-3", host + "-4", host + "-5"}
	var got []string
	for _, m := range nodes {
		await(t, "a lease", func() bool { return m.current.Load() != nil })
		got = append(got, m.Name())
	}
	if slices.Sort(got); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("names: got %q, want %q", got, want)
	}
	for _, m := range nodes {
		if m.Name() == host+"-3" {
			m.stop()
		}
	}
	again := startMember(t, Config{Redis: url, TTL: calmTTL}, 4)
	await(t, "a lease", func() bool { return again.current.Load() != nil })
	if got := again.Name(); got != host+"-3" {
		t.Errorf("got %q, want the name that has become free", got)
	}
}
