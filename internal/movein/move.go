package movein

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq/internal/rubyqueue"
)

// maxLeft is how many ids may stay: their names are kept in memory, so that none is tried twice.
const maxLeft = 100_000

// ahead is how many batches are taken before they are imported.
const ahead = 4

// Mover moves a queue. Its fields are set before the first call.
type Mover struct {
	Old    *rubyqueue.Queue
	Shards int // of the old queue
	// Import brings entries into the new queue, each once for its source and number, in order. It answers
	// all of them, and an error if one was not taken in. After a refusal a later entry of the same id and source
	// may be refused, too.
	Import func(ctx context.Context, source string, entries []Entry) ([]Result, error)
	Form   Form
	Limits Limits
	DueNow bool // what Ruby never runs is moved, and due now

	Progress func(n int)  // is told of ids that were looked at or moved; may be nil
	Leave    func(l Left) // is told of what stays; may be nil

	counted int64  // the highest number that was counted as moved: it may be imported again if it could not be forgotten
	source  string // whose number that is

	mu   sync.Mutex
	left map[string]bool // ids that stay, "" and the id, or "m" and the id of the morgue
}

func (m *Mover) progress(n int) {
	if m.Progress != nil {
		m.Progress(n)
	}
}

func leftName(id string, morgue bool) string {
	if morgue {
		return "m" + id
	}
	return "j" + id
}

// leave notes that an entry stays.
func (m *Mover) leave(e *rubyqueue.Entry, reason error) {
	m.mu.Lock()
	name := leftName(e.ID, e.Morgue)
	first := !m.left[name]
	if m.left == nil {
		m.left = map[string]bool{}
	}
	m.left[name] = true
	m.mu.Unlock()
	if first && m.Leave != nil {
		m.Leave(Left{e.ID, e.Morgue, reason.Error()})
	}
}

func (m *Mover) stays(id string, morgue bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[leftName(id, morgue)]
}

// LeftCount is how many jobs and entries of the morgue stay.
func (m *Mover) LeftCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.left)
}

// Move moves all that there is, and returns what that was. It may be repeated after any error, and after a
// process that was killed.
func (m *Mover) Move(ctx context.Context) (moved Counts, err error) {
	defer func() { moved.Left = m.LeftCount() }()
	source, err := m.Old.Begin(ctx)
	if err != nil {
		return moved, err
	}
	if source != m.source {
		m.source, m.counted = source, 0
	}
	if err := m.resume(ctx, source, &moved); err != nil {
		return moved, err
	}
	if err := m.pass(ctx, source, &moved); err != nil {
		return moved, err
	}
	if err := m.Old.Sweep(ctx); err != nil {
		return moved, err
	}
	return moved, m.Old.End(ctx)
}

// resume finishes what was taken and is not forgotten.
func (m *Mover) resume(ctx context.Context, source string, moved *Counts) error {
	for last := int64(0); ; {
		entries, err := m.Old.Taken(ctx, last, m.Limits.Payloads)
		if err != nil || len(entries) == 0 {
			return err
		}
		if err := m.bring(ctx, source, entries, moved); err != nil {
			return err
		}
		last = entries[len(entries)-1].Number
	}
}

// pass takes everything once, while it imports what it took before.
func (m *Mover) pass(ctx context.Context, source string, moved *Counts) error {
	work, ctx := errgroup.WithContext(ctx)
	taken := make(chan []*rubyqueue.Entry, ahead)
	work.Go(func() error {
		defer close(taken)
		give := func(entries []*rubyqueue.Entry) error {
			select {
			case taken <- entries:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := m.takeJobs(ctx, give); err != nil {
			return err
		}
		return m.takeMorgue(ctx, give)
	})
	work.Go(func() error {
		for entries := range taken {
			if err := m.bring(ctx, source, entries, moved); err != nil {
				return err
			}
		}
		return nil
	})
	return work.Wait()
}

// bring imports entries and forgets them; those that cannot come are put back.
func (m *Mover) bring(ctx context.Context, source string, entries []*rubyqueue.Entry, moved *Counts) error {
	var coming []Entry
	var from []*rubyqueue.Entry
	var done []int64
	for _, e := range entries {
		if e == nil {
			continue
		}
		to, _, err := m.convert(e)
		switch {
		case err != nil:
			if err := m.putBack(ctx, e, err); err != nil {
				return err
			}
		case len(to.Payloads) == 0:
			done = append(done, e.Number)
		default:
			coming, from = append(coming, to), append(from, e)
		}
	}
	if len(coming) > 0 {
		results, err := m.Import(ctx, source, coming)
		if len(results) != len(coming) {
			return cmp.Or(err, fmt.Errorf("%d answers to %d entries", len(results), len(coming)))
		}
		var first error
		var refused []int
		for i, r := range results {
			switch {
			case r.Refused != nil:
				refused = append(refused, i)
			case r.Err == nil:
				done = append(done, coming[i].Number)
				if n := coming[i].Number; n > m.counted {
					m.counted = n
					moved.count(from[i], len(coming[i].Payloads), nil)
				}
			case first == nil:
				first = r.Err
			}
		}
		for _, i := range refused {
			if err := m.putBack(ctx, from[i], results[i].Refused); err != nil {
				return err
			}
		}
		if first != nil {
			return cmp.Or(m.Old.Forget(ctx, done...), first)
		}
	}
	if err := m.Old.Forget(ctx, done...); err != nil {
		return err
	}
	m.progress(len(entries))
	return nil
}

func (m *Mover) putBack(ctx context.Context, e *rubyqueue.Entry, reason error) error {
	m.leave(e, reason)
	if m.LeftCount() > maxLeft {
		return fmt.Errorf("more than %d ids cannot be moved; the last one: %q %w", maxLeft, e.ID, reason)
	}
	return m.Old.PutBack(ctx, e.Number)
}

// takeJobs takes jobs in order of their due times, then their ids: what is due already runs in this order.
func (m *Mover) takeJobs(ctx context.Context, give func([]*rubyqueue.Entry) error) error {
	flights, err := m.Old.Flights(ctx)
	if err != nil {
		return err
	}
	flown, err := m.flightsDue(ctx, flights)
	if err != nil {
		return err
	}
	from := 0                   // ids that were passed and are there yet
	passed := map[string]bool{} // those of them that are in flight
	for {
		waiting, err := m.Old.Waiting(ctx, from, 10*page)
		if err != nil {
			return err
		}
		var batch []rubyqueue.Due
		for _, due := range waiting {
			switch {
			case flights[due.ID] != nil:
				passed[due.ID] = true
				from++
			case m.stays(due.ID, false):
				from++
			default:
				batch = append(batch, due)
			}
		}
		n := len(flown)
		if len(waiting) > 0 {
			n = 0
			for n < len(flown) && order(flown[n], waiting[len(waiting)-1]) <= 0 {
				n++
			}
		}
		for _, due := range flown[:n] {
			if !m.stays(due.ID, false) {
				batch = append(batch, due)
			}
		}
		flown = flown[n:]
		if len(waiting) == 0 && len(batch) == 0 {
			return nil
		}
		slices.SortFunc(batch, order)
		if err := m.take(ctx, batch, flights, give); err != nil {
			return err
		}
		for _, due := range batch {
			delete(flights, due.ID) // pushed again, it waits like others
			if passed[due.ID] {
				delete(passed, due.ID)
				from--
			}
		}
	}
}

func order(a, b rubyqueue.Due) int {
	return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.ID, b.ID))
}

func (m *Mover) take(ctx context.Context, batch []rubyqueue.Due, flights rubyqueue.Flights, give func([]*rubyqueue.Entry) error) error {
	ids := make([]string, len(batch))
	for i, due := range batch {
		ids[i] = due.ID
	}
	for len(ids) > 0 {
		entries, err := m.Old.Take(ctx, ids, flights, m.Limits.Payloads)
		if err != nil {
			return err
		}
		ids = ids[len(entries):]
		if err := give(entries); err != nil {
			return err
		}
	}
	return nil
}

// flightsDue says when what is in flight was due, in order.
func (m *Mover) flightsDue(ctx context.Context, flights rubyqueue.Flights) (all []rubyqueue.Due, err error) {
	ids := make([]string, 0, len(flights))
	for id := range flights {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for len(ids) > 0 {
		entries, err := m.Old.Look(ctx, ids, flights, m.Limits.Payloads)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e != nil {
				all = append(all, rubyqueue.Due{ID: e.ID, At: rubyqueue.Settle(e).At})
			}
		}
		ids = ids[len(entries):]
	}
	slices.SortFunc(all, order)
	return all, nil
}

// takeMorgue takes what is buried, in order of the burials.
func (m *Mover) takeMorgue(ctx context.Context, give func([]*rubyqueue.Entry) error) error {
	for from := 0; ; {
		buried, err := m.Old.Morgue(ctx, from, 10*page)
		if err != nil || len(buried) == 0 {
			return err
		}
		var ids []string
		for _, due := range buried {
			if m.stays(due.ID, true) {
				from++
				continue
			}
			ids = append(ids, due.ID)
		}
		for len(ids) > 0 {
			entries, err := m.Old.TakeBuried(ctx, ids, m.Limits.Payloads)
			if err != nil {
				return err
			}
			ids = ids[len(entries):]
			if err := give(entries); err != nil {
				return err
			}
		}
	}
}
