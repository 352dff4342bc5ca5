package protocol_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/transfer"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestWorstImport is TestWorstScript for imports.
func TestWorstImport(t *testing.T) {
	if os.Getenv(worstFor) == "" {
		t.Skipf("%s=30s asks for it", worstFor)
	}
	server := redistest.Start(t)
	worst := &worstOf{found: map[string]worstCase{}, info: redis.NewClient(&redis.Options{Addr: server.Addr()})}
	defer worst.info.Close()
	b := &backend{url: server.URL()}
	worst.names(b.open(t))
	worst.importing(t, b)
	worst.judge(t)
}

// importing imports entries as large and as many as one script gets, for ids in the most expensive states.
func (w *worstOf) importing(t *testing.T, b *backend) {
	for _, c := range []struct {
		ids, waiting, payloads, size int // of each id: what waits, and what its entry has
		long                         int // bytes of an id
		state                        string
	}{
		{1000, 0, 1, 10, 10, ""}, {1000, 0, 1, 1000, 500, ""}, {70, 0, 1, 15_000, 10, ""}, {1000, 0, 1, 500, 10, "later"}, {1000, 1, 1, 10, 10, ""}, {1000, 1, 1, 10, 500, "later"},
		{1000, 31, 1, 130, 10, ""}, {1000, 31, 2, 130, 10, "later"}, {1000, 32, 32, 1, 10, ""}, {100, 40, 40, 100, 10, "later"}, {8, 300, 500, 1000, 10, ""},
		{2, 9400, 500, 1000, 10, ""}, {1, 9400, 600, 20, 10, "equal"}, {8, 9000, 500, 10, 500, ""}, {2, 7, 7, 1_000_000, 10, "later"}, {3, 15, 1, 1_000_000, 10, ""},
		{1000, 0, 1, 500, 10, "morgue"}, {1000, 31, 31, 1, 10, "morgue"}, {8, 500, 500, 1000, 10, "morgue"}, {2, 3, 3, 1_000_000, 10, "morgue"},
		{1000, 1, 1, 500, 10, "fly"}, {1000, 31, 31, 1, 10, "fly"}, {3, 3000, 500, 100, 10, "fly"}, {1000, 1, 1, 10, 500, "refused"},
	} {
		r := newRig(t, b)
		w.what = fmt.Sprintf("%d ids of %d bytes, where %d payloads wait, and entries of %d payloads of %d bytes, %s", c.ids, c.long, c.waiting, c.payloads, c.size, c.state)
		number := int64(0)
		entries := func(text string, payloads int) (list []transfer.Entry) {
			for i := range c.ids {
				number++
				e := transfer.Entry{Number: number, ID: fmt.Sprint(strings.Repeat("i", c.long-4), i), RetryCount: -1}
				for k := range payloads {
					e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(k), Data: fmt.Append(nil, text, k, strings.Repeat("x", c.size))})
				}
				if c.state == "morgue" {
					e.Morgue = true
				}
				list = append(list, e)
			}
			return list
		}
		take := func(list []transfer.Entry) {
			if _, err := transfer.Import(r.ctx, r.q, "old", list...); err != nil && c.state != "refused" {
				t.Fatalf("%s: %v", w.what, err)
			}
		}
		if c.waiting > 0 {
			take(entries("a", c.waiting))
		}
		if c.state == "fly" {
			for p := r.pop(1000); len(p.Jobs) > 0; p = r.pop(1000) { //nolint:revive // they stay in flight
			}
			take(entries("c", c.waiting))
		}
		more := entries("b", c.payloads)
		for i := range more {
			e := &more[i]
			switch c.state {
			case "later", "morgue":
				failed(3, strings.Repeat("e", 1000), time.Hour)(e)
			case "equal":
				for k := range e.Payloads[:200] {
					e.Payloads[k].Data = fmt.Append(nil, "a", k, strings.Repeat("x", c.size))
				}
				e.Payloads = e.Payloads[:500]
			case "refused":
				e.Err = errGivenUp
			}
		}
		r.c.DB().ForTests().AddHook(w)
		before := w.found["import"]
		w.found["import"] = worstCase{}
		take(more)
		take(more)
		found := w.found["import"]
		t.Logf("%8s %s", found.cpu.Round(10*time.Microsecond), found.what)
		if before.cpu > found.cpu {
			w.found["import"] = before
		}
	}
}
