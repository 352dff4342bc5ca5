package runner

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A job that has failed is alone in its batch, wherever it stands, and the batches that wait are counted so.
func TestFailedJobsGoAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string // f = has failed
		size int
		want string
	}{
		{"ooooo", 2, "oo oo o"},
		{"oofoo", 3, "oo f oo"},
		{"fooo", 3, "f ooo"},
		{"ffof", 3, "f f o f"},
		{"oof", 3, "oo f"},
		{"ofo", 1, "o f o"},
	} {
		var p protocol.Popped
		for i, kind := range c.line {
			p.Jobs = append(p.Jobs, lowkiq.Job{ID: fmt.Sprintf("%c%d", kind, i), RetryCount: map[rune]int{'o': -1, 'f': 2}[kind]})
		}
		f := flights{open: map[int64]int{}}
		f.add(p)
		count, got, taken := f.countBatches(c.size), "", 0
		for f.countJobs() > 0 {
			if got != "" {
				got += " "
			}
			part := f.takeBatch(c.size)
			if part.place != len(c.line)-f.countJobs()-len(part.jobs) {
				t.Errorf("%s by %d: got place %d", c.line, c.size, part.place)
			}
			for _, job := range part.jobs {
				got += job.ID[:1]
			}
			taken++
		}
		if got != c.want || count != taken {
			t.Errorf("%s by %d: got %q, counted as %d batches, want %q", c.line, c.size, got, count, c.want)
		}
	}
}
