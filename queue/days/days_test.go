package days

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// TestVeryManyParts: a day of thousands of processes is read and joined in pieces, each part once, and ends as one sum.
func TestVeryManyParts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, err := queue.Open(queue.Config{Redis: server.URL(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	now, err := c.Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do := func(args ...any) any {
		t.Helper()
		reply, err := c.DB().Do(t.Context(), "test", args...)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	const parts = 5000
	key := c.DB().Keys.Day("orders", now.UTC().Format(string(Days)))
	plant := []any{"HSET", key}
	for i := range parts {
		plant = append(plant, fmt.Sprintf("p%d/1", i), fmt.Sprintf(`0 %d {"processed":1}`, now.Add(-3*time.Minute).UnixMicro()))
	}
	do(plant...)
	calls := func() (scans int) {
		found := regexp.MustCompile(`cmdstat_hscan:calls=(\d+)`).FindStringSubmatch(fmt.Sprint(do("INFO", "commandstats")))
		if found == nil {
			return 0
		}
		scans, _ = strconv.Atoi(found[1])
		return scans
	}
	sum := func() uint64 {
		t.Helper()
		found, err := Read(t.Context(), c, Days, 2, "orders")
		if err != nil || len(found) != 1 || found[0].Unreadable > 0 {
			t.Fatalf("got %+v, %v", found, err)
		}
		return found[0].Figures.Processed
	}
	if got := sum(); got != parts {
		t.Errorf("got %d, want %d", got, parts)
	}
	before := calls()
	if err := Join(context.Background(), c, false); err != nil {
		t.Fatal(err)
	}
	if got := calls() - before; got > parts/100*3/2 {
		t.Errorf("the parts were read in %d pieces, want each read once", got)
	}
	if got, fields := sum(), do("HLEN", key); got != parts || fields != int64(1) {
		t.Errorf("joined: got %d in %v parts, want %d in one", got, fields, parts)
	}
}
