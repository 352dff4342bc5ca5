package movein

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/migrate/marshal"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
)

// pageSize is how many ids are read at a time.
const pageSize = 100

// Counts are the jobs that a queue of Ruby's Lowkiq has, or that were moved. An id that was pushed again while it is in
// flight counts as one job, and as one job in flight.
type Counts struct {
	Jobs           int `json:"jobs"`
	Payloads       int `json:"payloads"` // equal payloads of an id count once
	InFlight       int `json:"in_flight"`
	Morgue         int `json:"morgue"`
	MorguePayloads int `json:"morgue_payloads"`
	Left           int `json:"left"` // jobs and morgue entries that cannot be moved
}

// Add adds the jobs that another pass moved. Left becomes the count of that pass, which includes the jobs that earlier
// passes left.
func (c *Counts) Add(more Counts) {
	c.Jobs += more.Jobs
	c.Payloads += more.Payloads
	c.InFlight += more.InFlight
	c.Morgue += more.Morgue
	c.MorguePayloads += more.MorguePayloads
	c.Left = more.Left
}

// Left is a job that stays in its queue, with the reason.
type Left struct {
	ID     string
	Morgue bool
	Reason string
}

// Report is the result of a survey.
type Report struct {
	Counts
	Strays  int            `json:"wrong_shard"`   // ids in the set of another shard than the shard count gives them
	Beyond  int            `json:"beyond_shards"` // ids in flight in shards beyond the shard count
	Orphans int            `json:"orphans"`       // ids with payloads that no index has, if they were looked for
	Changed map[string]int `json:"changed"`       // jobs whose JSON lacks some detail, by the kind of detail
}

// ErrWorking means that a worker of Ruby's Lowkiq works on the queue.
var ErrWorking = errors.New("a worker of Ruby's Lowkiq works on this queue: stop all of them first")

// WatchWorkers watches for the time d whether a worker moves anything. It returns what it saw at the end, for
// [Mover.CheckWorkers].
func (m *Mover) WatchWorkers(ctx context.Context, d time.Duration) (rubyqueue.Signs, error) {
	before, err := m.Old.ReadSigns(ctx)
	if err != nil {
		return before, err
	}
	if err := sleep.For(ctx, d); err != nil {
		return before, err
	}
	after, err := m.Old.ReadSigns(ctx)
	if err != nil {
		return after, err
	}
	if err := compareSigns(before, after, d); err != nil {
		return after, err
	}
	flights, err := m.Old.ReadFlights(ctx)
	if err == nil {
		err = m.checkFlights(flights)
	}
	return after, err
}

// CheckWorkers returns [ErrWorking] if a worker has handled ids, taken ids or restored its flights since before. The
// migration moves flights itself, which is no sign of a worker.
func (m *Mover) CheckWorkers(ctx context.Context, before rubyqueue.Signs) error {
	after, err := m.Old.ReadSigns(ctx)
	if err != nil {
		return err
	}
	if after.Processed != before.Processed || after.Failed != before.Failed {
		return fmt.Errorf("%w (it has handled %d ids meanwhile)", ErrWorking, after.Processed-before.Processed+after.Failed-before.Failed)
	}
	for shard, n := range after.Lengths {
		if before.Lengths[shard] != n {
			return fmt.Errorf("%w (it has taken %s ids of shard %s meanwhile)", ErrWorking, n, shard)
		}
	}
	for shard := range before.Lengths {
		if _, there := after.Lengths[shard]; !there {
			return fmt.Errorf("%w (it has restored or handled what was in flight in shard %s)", ErrWorking, shard)
		}
	}
	flights, err := m.Old.ReadFlights(ctx)
	if err == nil {
		err = m.checkFlights(flights)
	}
	return err
}

// checkEvery is how often [Mover.KeepCheckingWorkers] checks.
const checkEvery = 50 * time.Millisecond

// KeepCheckingWorkers checks for the time d after flights were moved. Ruby's restore takes three steps: it reads the flight,
// writes the ids to the queue, and clears the flight. Between the first two it leaves no trace. A restore that had read its
// flight before the move writes after the move, and only then shows itself.
func (m *Mover) KeepCheckingWorkers(ctx context.Context, before rubyqueue.Signs, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		if err := m.CheckWorkers(ctx, before); err != nil || !time.Now().Before(end) {
			return err
		}
		if err := sleep.For(ctx, min(d, checkEvery)); err != nil {
			return err
		}
	}
}

// compareSigns returns [ErrWorking] if the signs of a worker have changed within the time d.
func compareSigns(before, after rubyqueue.Signs, d time.Duration) error {
	switch {
	case after.Processed != before.Processed || after.Failed != before.Failed:
		return fmt.Errorf("%w (within %s it handled %d ids)", ErrWorking, d, after.Processed-before.Processed+after.Failed-before.Failed)
	case after.Flights != before.Flights || !maps.Equal(after.Lengths, before.Lengths):
		return fmt.Errorf("%w (within %s what is in flight changed)", ErrWorking, d)
	}
	return nil
}

// Survey reads the whole queue and changes nothing.
func (m *Mover) Survey(ctx context.Context) (r Report, err error) {
	r.Changed = map[string]int{}
	flights, err := m.Old.ReadFlights(ctx)
	if err != nil {
		return r, err
	}
	for _, shards := range flights {
		if shards[0] >= m.Shards {
			r.Beyond++
		}
	}
	look := func(ids []string) ([]*rubyqueue.Entry, error) {
		return m.Old.Peek(ctx, ids, flights, m.Limits.Payloads)
	}
	if err := m.surveyIDs(slices.Sorted(maps.Keys(flights)), look, &r); err != nil {
		return r, err
	}
	err = eachPage(ctx, m.Old.ReadWaiting, func(ids []string) error {
		ids = slices.DeleteFunc(ids, func(id string) bool { return flights[id] != nil })
		return m.surveyIDs(ids, look, &r)
	})
	if err != nil {
		return r, err
	}
	err = eachPage(ctx, m.Old.ReadMorgue, func(ids []string) error {
		return m.surveyIDs(ids, func(ids []string) ([]*rubyqueue.Entry, error) { return m.Old.PeekBuried(ctx, ids, m.Limits.Payloads) }, &r)
	})
	if err != nil {
		return r, err
	}
	return r, m.Old.FindStrays(ctx, func(string, int) { r.Strays++ })
}

// eachPage calls fn with all ids of a list, some at a time.
func eachPage(ctx context.Context, read func(ctx context.Context, from, n int) ([]rubyqueue.Due, error), fn func(ids []string) error) error {
	for from := 0; ; {
		due, err := read(ctx, from, 10*pageSize)
		if err != nil || len(due) == 0 {
			return err
		}
		ids := make([]string, len(due))
		for i := range due {
			ids[i] = due[i].ID
		}
		if err := fn(ids); err != nil {
			return err
		}
		from += len(due)
	}
}

// surveyIDs adds to the report what the ids have.
func (m *Mover) surveyIDs(ids []string, look func([]string) ([]*rubyqueue.Entry, error), r *Report) error {
	for len(ids) > 0 {
		entries, err := look(ids)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e == nil {
				continue
			}
			to, lost, err := m.convertEntry(e)
			r.countEntry(e, len(to.Payloads), err)
			for _, kind := range lost.Names() {
				r.Changed[kind]++
			}
			if err != nil {
				m.recordLeft(e, err)
			}
		}
		m.reportProgress(len(entries))
		ids = ids[len(entries):]
	}
	return nil
}

// countEntry counts an entry that converts to the given number of payloads, or that stays because of err.
func (c *Counts) countEntry(e *rubyqueue.Entry, payloads int, err error) {
	if err != nil {
		waiting, flight := e.Counts()
		payloads = waiting + flight
		c.Left++
	}
	switch {
	case payloads == 0: // there is nothing to move
		return
	case e.Morgue:
		c.Morgue++
		c.MorguePayloads += payloads
	default:
		c.Jobs++
		c.Payloads += payloads
	}
	if e.Flight != nil {
		c.InFlight++
	}
}

func (m *Mover) convertEntry(e *rubyqueue.Entry) (to Entry, lost marshal.Loss, err error) {
	return converter{m.Form, m.Limits, m.DueNow}.convertEntry(e)
}
