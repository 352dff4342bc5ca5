//go:build linux

package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/demodata"
)

// realEvents are the first n events of the real stream.
func realEvents(n int) []lowkiq.Push {
	jobs := make([]lowkiq.Push, 0, demodata.Count)
	for e := range demodata.Events() {
		if len(jobs) == n {
			break
		}
		jobs = append(jobs, lowkiq.Push{ID: e.ID, Payload: e.Payload, Score: &e.Score})
	}
	return jobs
}

// plainJobs are n jobs of as many ids.
func plainJobs(prefix string, n int) []lowkiq.Push {
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = plainJob(fmt.Sprintf("%s-%d", prefix, i))
	}
	return jobs
}

func plainJob(id string) lowkiq.Push {
	score := 1.0
	return lowkiq.Push{ID: id, Payload: []byte(`{"of":"` + id + `"}`), Score: &score}
}

// feeder pushes jobs bit by bit, so that the stream flows while processes die.
type feeder struct {
	r     *rig
	jobs  []lowkiq.Push
	allow atomic.Int64 // how many may be pushed by now
	done  chan error
}

func (r *rig) feed(jobs []lowkiq.Push) *feeder {
	f := &feeder{r: r, jobs: jobs, done: make(chan error, 1)}
	go func() { f.done <- f.run(r.t.Context()) }()
	return f
}

func (f *feeder) run(ctx context.Context) error {
	const bit = 40
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for sent := 0; sent < len(f.jobs); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		until := min(sent+bit, int(f.allow.Load()), len(f.jobs))
		if until == sent {
			continue
		}
		if err := f.r.tryPush(f.jobs[sent:until]...); err != nil {
			return err
		}
		sent = until
	}
	return nil
}

// share allows the i-th of n equal parts of the jobs.
func (f *feeder) share(i, n int) { f.allow.Store(int64(len(f.jobs) * i / n)) }

// finish lets the rest go and waits for it.
func (f *feeder) finish() {
	f.r.t.Helper()
	f.share(1, 1)
	select {
	case err := <-f.done:
		if err != nil {
			f.r.t.Fatal(err)
		}
	case <-time.After(patience):
		f.r.t.Fatalf("not all was pushed within %s", patience)
	}
}
