package web

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestDaysAreBounded: an answer about all days of very many queues is refused, with what can be asked for.
func TestDaysAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t).URL())
	for i := range mostDays/92 + 1 {
		if _, err := w.client.Register(t.Context(), lowkiq.Queue{Name: fmt.Sprint("q", i), Shards: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for target, want := range map[string]int{"days=92": 400, "days=91": 200, "days=92&queue=q1": 200, "hours=48": 200, "hours=49": 400, "hours=2&days=2": 400} {
		answer := w.do("GET", "/api/v1/stats/days?"+target, "")
		if answer.Code != want || target == "days=92" && !strings.Contains(answer.Body.String(), "name a queue, or fewer") {
			t.Errorf("%s: got %d %s, want %d", target, answer.Code, answer.Body, want)
		}
	}
}
