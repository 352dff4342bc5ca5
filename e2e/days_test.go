//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/daycounts"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/days"
)

// TestDaysOfAKilledNode kills a working node with SIGKILL. The day's figures lose at most the last ten seconds. Records
// that its handlers wrote before are there, once.
func TestDaysOfAKilledNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, 4)
	w := r.start(settings{TTL: calmTTL, Work: time.Millisecond})
	n := 0
	counted := func() (runs uint64) {
		t.Helper()
		found, err := days.Read(t.Context(), r.client, days.Days, 2, queueName)
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range found { // two if it is midnight
			runs += day.Figures.Run.Count()
		}
		return runs
	}
	push := func() {
		score := float64(n)
		r.push(lowkiq.Push{ID: fmt.Sprint("job", n), Score: &score})
		n++
	}
	r.await("calls are older than what may be lost", daycounts.Every+patience, func() bool {
		push()
		all := r.ends()
		return len(all) > 100 && all[100] < judge.Now()-daycounts.Every-slack
	})
	first := counted()
	r.await("figures are written, and calls end after it", daycounts.Every+patience, func() bool { push(); return counted() > first })
	more := len(r.ends()) + 20
	r.await("more is handled", patience, func() bool { push(); return len(r.ends()) > more })
	killed := r.kill(w)
	got, ended := counted(), r.ends()
	before := uint64(0)
	for _, at := range ended {
		if at < killed-daycounts.Every-slack {
			before++
		}
	}
	t.Logf("%d calls ended, %d of them more than %s before the kill; the day has %d", len(ended), before, daycounts.Every+slack, got)
	if got < before || got > uint64(len(ended)) {
		t.Errorf("the day has %d runs; handlers wrote down %d, of which %d ended more than %s before the kill", got, len(ended), before,
			daycounts.Every+slack)
	}
	if before == 0 || got == uint64(len(ended)) {
		t.Errorf("the day has %d of %d runs: the test would show little", got, len(ended))
	}
	r.start(settings{TTL: calmTTL, Work: time.Millisecond})
	r.drained()
}

// ends are when the handler calls ended that are in the history.
func (r *rig) ends() (all []time.Duration) {
	r.t.Helper()
	for _, c := range r.calls() {
		all = append(all, c.ended)
	}
	return all
}

// call is a handler call that was not cut off.
type call struct{ began, ended time.Duration }

// calls are those in the history that succeeded.
func (r *rig) calls() (all []call) {
	r.t.Helper()
	text, err := os.ReadFile(r.history)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 5 || words[0] != "end" || words[len(words)-1] != "." {
			continue
		}
		ended, err := strconv.ParseInt(words[1], 10, 64)
		began, err2 := strconv.ParseInt(words[3], 10, 64)
		if err := errors.Join(err, err2); err != nil {
			r.t.Fatalf("history: %q: %v", line, err)
		}
		all = append(all, call{time.Duration(began), time.Duration(ended)})
	}
	return all
}
