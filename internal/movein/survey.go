package movein

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/marshal"
	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/rubyqueue"
)

// page is how many ids are read at a time.
const page = 100

// Counts are what a queue of Ruby's Lowkiq has, or what was moved of it. An id that is in flight and was
// pushed again meanwhile is one job, and one in flight.
type Counts struct {
	Jobs           int `json:"jobs"`
	Payloads       int `json:"payloads"` // equal ones of an id once
	InFlight       int `json:"in_flight"`
	Morgue         int `json:"morgue"`
	MorguePayloads int `json:"morgue_payloads"`
	Left           int `json:"left"` // jobs and morgue entries that cannot come
}

// Add adds what another pass moved; what stays is as the last pass says.
func (c *Counts) Add(more Counts) {
	c.Jobs += more.Jobs
	c.Payloads += more.Payloads
	c.InFlight += more.InFlight
	c.Morgue += more.Morgue
	c.MorguePayloads += more.MorguePayloads
	c.Left = more.Left
}

// Left is what stays where it is, and why.
type Left struct {
	ID     string
	Morgue bool
	Reason string
}

// Report is what a survey found.
type Report struct {
	Counts
	Strays  int            `json:"wrong_shard"`   // ids in the set of a shard that is not theirs under the shard count
	Beyond  int            `json:"beyond_shards"` // ids in flight in shards that are beyond the count
	Orphans int            `json:"orphans"`       // piles of payloads of ids that no index has, if they were looked for
	Changed map[string]int `json:"changed"`       // jobs of whose payloads the JSON does not say all, by what
}

// ErrWorking says that a worker of Ruby's Lowkiq works on the queue.
var ErrWorking = errors.New("a worker of Ruby's Lowkiq works on this queue: stop all of them first")

// Watch looks for so long whether a worker moves anything. What it saw at the end is for [Mover.Working].
func (m *Mover) Watch(ctx context.Context, d time.Duration) (rubyqueue.Signs, error) {
	before, err := m.Old.Signs(ctx)
	if err != nil {
		return before, err
	}
	if err := pause.For(ctx, d); err != nil {
		return before, err
	}
	after, err := m.Old.Signs(ctx)
	if err != nil {
		return after, err
	}
	if err := moved(before, after, d); err != nil {
		return after, err
	}
	flights, err := m.Old.Flights(ctx)
	if err == nil {
		err = m.dead(flights)
	}
	return after, err
}

// Working looks for a worker that came since an earlier look: it has handled something, taken something, or restored what was in flight. That what was
// in flight is moved is none of its doing.
func (m *Mover) Working(ctx context.Context, before rubyqueue.Signs) error {
	after, err := m.Old.Signs(ctx)
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
	flights, err := m.Old.Flights(ctx)
	if err == nil {
		err = m.dead(flights)
	}
	return err
}

// lookEvery is how often [Mover.Late] looks.
const lookEvery = 50 * time.Millisecond

// Late is Working for some time after what was in flight was moved. A restore of Ruby's reads what is in flight, then writes it to the queue, then clears the flight, in
// three steps; between the first two it leaves no trace. One that had read before the move writes after it, and only that tells.
func (m *Mover) Late(ctx context.Context, before rubyqueue.Signs, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		if err := m.Working(ctx, before); err != nil || !time.Now().Before(end) {
			return err
		}
		if err := pause.For(ctx, min(d, lookEvery)); err != nil {
			return err
		}
	}
}

func moved(before, after rubyqueue.Signs, d time.Duration) error {
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
	flights, err := m.Old.Flights(ctx)
	if err != nil {
		return r, err
	}
	for _, shards := range flights {
		if shards[0] >= m.Shards {
			r.Beyond++
		}
	}
	look := func(ids []string) ([]*rubyqueue.Entry, error) {
		return m.Old.Look(ctx, ids, flights, m.Limits.Payloads)
	}
	if err := m.surveyed(slices.Sorted(maps.Keys(flights)), look, &r); err != nil {
		return r, err
	}
	err = pages(ctx, m.Old.Waiting, func(ids []string) error {
		ids = slices.DeleteFunc(ids, func(id string) bool { return flights[id] != nil })
		return m.surveyed(ids, look, &r)
	})
	if err != nil {
		return r, err
	}
	err = pages(ctx, m.Old.Morgue, func(ids []string) error {
		return m.surveyed(ids, func(ids []string) ([]*rubyqueue.Entry, error) { return m.Old.LookBuried(ctx, ids, m.Limits.Payloads) }, &r)
	})
	if err != nil {
		return r, err
	}
	return r, m.Old.Strays(ctx, func(string, int) { r.Strays++ })
}

// pages calls fn with ids, some at a time.
func pages(ctx context.Context, read func(ctx context.Context, from, n int) ([]rubyqueue.Due, error), fn func(ids []string) error) error {
	for from := 0; ; {
		due, err := read(ctx, from, 10*page)
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

// surveyed counts what ids have.
func (m *Mover) surveyed(ids []string, look func([]string) ([]*rubyqueue.Entry, error), r *Report) error {
	for len(ids) > 0 {
		entries, err := look(ids)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e == nil {
				continue
			}
			to, lost, err := m.convert(e)
			r.count(e, len(to.Payloads), err)
			for _, kind := range lost.Names() {
				r.Changed[kind]++
			}
			if err != nil {
				m.leave(e, err)
			}
		}
		m.progress(len(entries))
		ids = ids[len(entries):]
	}
	return nil
}

// count adds an entry that comes to so many payloads.
func (c *Counts) count(e *rubyqueue.Entry, payloads int, err error) {
	if err != nil {
		waiting, flight := e.Counts()
		payloads = waiting + flight
		c.Left++
	}
	switch {
	case payloads == 0: // nothing is to be moved
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

func (m *Mover) convert(e *rubyqueue.Entry) (to Entry, lost marshal.Loss, err error) {
	return converter{m.Form, m.Limits, m.DueNow}.convert(e)
}
