package web

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestDaysAreBounded checks that an answer about all days, or hours, of very many queues is refused. The error says
// what to ask for instead.
func TestDaysAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t).URL())
	for i := range maxDays/48 + 1 {
		if _, err := w.client.Register(t.Context(), lowkiq.Queue{Name: fmt.Sprint("q", i), Shards: 1}); err != nil {
			t.Fatal(err)
		}
	}
	const many = "name a queue, or ask for at most 47"
	for target, want := range map[string]string{
		"days=47": "", "days=48": `"days: 48 of 209 queues are 10032, at most 10000 are allowed at once; ` + many + `"`, "days=92&queue=q1": "",
		"hours=47": "", "hours=48": `"hours: 48 of 209 queues are 10032, at most 10000 are allowed at once; ` + many + `","field":"hours"`,
		"hours=49": "hours: got", "hours=2&days=2": "hours: days is given",
	} {
		answer := w.do("GET", "/api/v1/stats/days?"+target, "")
		if ok := answer.Code == 200; ok != (want == "") || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s: got %d %s, want %s", target, answer.Code, answer.Body, want)
		}
	}
}
