package protocol_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A waiting job takes about as much of Redis's memory as docs/capacity.md says.
func TestMemoryOfJobs(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ id, payload int }{{10, 16}, {20, 200}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			const jobs = 50_000
			b := &backend{url: redistest.Start(t).URL()}
			c := b.open(t)
			q, before := newQueue(t, c, 16), usedMemory(t, c)
			for first := 0; first < jobs; first += 1000 {
				pushes := make([]lowkiq.Push, 1000)
				for i := range pushes {
					pushes[i].ID = fmt.Sprintf("%0*d", size.id, first+i)
					pushes[i].Payload = []byte(fmt.Sprintf("%-*d", size.payload, first+i))
				}
				if _, err := q.Push(t.Context(), pushes...); err != nil {
					t.Fatal(err)
				}
			}
			got, want := (usedMemory(t, c)-before)/jobs, 110+size.id-10+size.payload-16
			if got < want*3/4 || got > want*5/4 {
				t.Errorf("got %d bytes a job, want about %d", got, want)
			}
		})
	}
}

func usedMemory(t *testing.T, c *protocol.Client) int {
	t.Helper()
	info, err := c.DB().ForTests().Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^used_memory:(\d+)`).FindStringSubmatch(strings.ReplaceAll(info, "\r", ""))
	if found == nil {
		t.Fatalf("got no used_memory in %q", info)
	}
	used, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return used
}
