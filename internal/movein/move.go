package movein

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/rubyqueue"
)

// maxLeft is how many ids may stay: their names are kept in memory, so that none is tried twice.
const maxLeft = 100_000

// mostFlown is how many ids that were in flight are named.
const mostFlown = 1000

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
	// Seal ends a source: of its entries none is taken in any more that is not in. nil: nobody else imports.
	Seal func(ctx context.Context, source string) error
	// Over forgets a source that is sealed and has nothing more; it may be told twice. nil: it stays known.
	Over   func(ctx context.Context, source string) error
	Form   Form   // "": that of an earlier move; see Agree
	To     string // names the new queue
	Limits Limits
	DueNow bool          // what Ruby never runs is moved, and due now
	Keep   time.Duration // for how long the old Redis keeps what was moved, so that it can go back as it was; 0: not at all
	Stay   bool          // Move leaves the run open, for the next one: End ends it

	Before bool // Agree has found that something was moved before

	Progress func(n int)  // is told of ids that were looked at or moved; may be nil
	Leave    func(l Left) // is told of what stays; may be nil

	counted int64    // the highest number that was counted as moved: it may be imported again if it could not be forgotten
	source  string   // of the run, "" without one
	flown   []string // ids that were in flight and are moved, the first ones
	sent    bool     // something was sent under it

	mu      sync.Mutex
	flights rubyqueue.Flights // at the first look, and not taken since
	marked  bool              // what is in flight
	left    map[string]bool   // ids that stay, "" and the id, or "m" and the id of the morgue
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

// Flown are the ids that were in flight and are moved, the first 1,000: a worker that lives after all runs them, too.
func (m *Mover) Flown() []string { return m.flown }

// LeftCount is how many jobs and entries of the morgue stay.
func (m *Mover) LeftCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.left)
}

// Move moves all that there is, and returns what that was. It may be repeated after any error, and after a
// process that was killed.
func (m *Mover) Move(ctx context.Context) (moved Counts, err error) {
	defer func() {
		moved.Left = m.LeftCount()
		if err != nil {
			m.source = "" // the next call begins as another process would
		}
	}()
	if err := m.begin(ctx, &moved); err != nil {
		return moved, err
	}
	if err := m.pass(ctx, m.source, &moved); err != nil {
		return moved, err
	}
	if err := m.Old.Sweep(ctx); err != nil || m.Stay {
		return moved, err
	}
	return moved, m.End(ctx)
}

// ErrWay is the error of a move with another form or new queue than the move before, or of a first move without a form.
var ErrWay = errors.New("a worker's jobs move in one form into one queue")

// Agree sets the form to that of an earlier move, if there was one. What the earlier one did holds until all is back.
func (m *Mover) Agree(ctx context.Context) error {
	was, err := m.Old.Way(ctx)
	switch {
	case err != nil:
		return err
	case was == (rubyqueue.Way{}) && m.Form == "":
		return fmt.Errorf("nothing was moved before: say --payload json or --payload marshal: %w", ErrWay)
	case was == (rubyqueue.Way{}):
		return nil
	case m.Form != "" && string(m.Form) != was.Form:
		return fmt.Errorf("it was moved with --payload %s, and not with %s: move it back first (--back): %w", was.Form, m.Form, ErrWay)
	case m.To != was.To:
		return fmt.Errorf("it was moved to %s, and not to %s: move it back first (--back): %w", was.To, m.To, ErrWay)
	}
	m.Form, m.Before = Form(was.Form), true
	return nil
}

// ErrGoingBack says that a way back was begun and is not at its end.
var ErrGoingBack = errors.New("a migration back to Ruby's Lowkiq is not at its end: run it again")

// begin starts a run, unless there is one, and brings what an earlier run had taken to its end.
func (m *Mover) begin(ctx context.Context, moved *Counts) error {
	if m.source != "" {
		return nil
	}
	if err := m.Agree(ctx); err != nil {
		return err
	}
	if err := m.Mark(ctx); err != nil {
		return err
	}
	run, err := m.Old.Begin(ctx)
	if err != nil {
		return err
	}
	staged, err := m.Old.Staged(ctx, 0)
	if err != nil {
		return err
	}
	if len(staged) > 0 {
		return ErrGoingBack
	}
	if err := m.Old.SetWay(ctx, rubyqueue.Way{Form: string(m.Form), To: m.To}); err != nil {
		return err
	}
	return m.inherit(ctx, run, moved)
}

// inherit makes a run's source that of this process alone. Another process may have begun before and be frozen in an import: what it
// sends late must find the entry in, or be refused. So what it has taken is imported under its own numbers first, and what is
// refused is put back only when the source is sealed.
func (m *Mover) inherit(ctx context.Context, run rubyqueue.Run, moved *Counts) error {
	m.counted, m.sent, m.source = 0, false, run.Source
	if run.Sealing != "" {
		if err := m.seal(ctx, run, moved); err != nil {
			return err
		}
	}
	if run.Fresh {
		return nil
	}
	stays := func(_ context.Context, e *rubyqueue.Entry, reason error) error {
		m.leave(e, reason)
		return nil
	}
	if err := m.taken(ctx, m.source, math.MaxInt64, moved, stays); err != nil {
		return err
	}
	run, err := m.Old.Rotate(ctx)
	if err != nil {
		return err
	}
	m.counted, m.sent, m.source = 0, false, run.Source
	return m.seal(ctx, run, moved)
}

// seal ends a source of which every entry that is taken yet was refused. What is in after all, as an earlier process has
// brought it, is in; the rest is put back.
func (m *Mover) seal(ctx context.Context, run rubyqueue.Run, moved *Counts) error {
	if m.Seal != nil {
		if err := m.Seal(ctx, run.Sealing); err != nil {
			return err
		}
	}
	if err := m.taken(ctx, run.Sealing, run.Bound, moved, m.putBack); err != nil {
		return err
	}
	if m.Over != nil {
		if err := m.Over(ctx, run.Sealing); err != nil {
			return err
		}
	}
	return m.Old.Sealed(ctx, run)
}

// taken imports what was taken and is not forgotten, up to a number. The new queue is told of all, also of what cannot come.
func (m *Mover) taken(ctx context.Context, source string, bound int64, moved *Counts, stays refusing) error {
	for last := int64(0); ; {
		entries, err := m.Old.Taken(ctx, last, m.Limits.Payloads)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e *rubyqueue.Entry) bool { return e == nil || e.Number > bound })
		if len(entries) == 0 {
			return nil
		}
		last = entries[len(entries)-1].Number
		if err := m.bring(ctx, source, entries, moved, stays, true); err != nil {
			return err
		}
	}
}

// End ends the run that [Mover.Stay] has left open. The old Redis has nothing of it any more but what is kept.
func (m *Mover) End(ctx context.Context) error {
	if m.source == "" {
		return nil
	}
	if !m.sent {
		m.source = ""
		return m.Old.End(ctx)
	}
	run, err := m.Old.EndSealing(ctx)
	if err != nil {
		return err
	}
	m.source = ""
	return m.seal(ctx, run, &Counts{})
}

// refusing says what becomes of an entry that cannot come.
type refusing func(ctx context.Context, e *rubyqueue.Entry, reason error) error

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
			if err := m.bring(ctx, source, entries, moved, m.putBack, false); err != nil {
				return err
			}
		}
		return nil
	})
	return work.Wait()
}

// bring imports entries and forgets them, but for those that cannot come. tell: the new queue is to know of those, too.
func (m *Mover) bring(ctx context.Context, source string, entries []*rubyqueue.Entry, moved *Counts, stays refusing, tell bool) error {
	var coming []Entry
	var from []*rubyqueue.Entry
	var done, empty []int64
	for _, e := range entries {
		if e == nil {
			continue
		}
		to, _, err := m.convert(e)
		switch {
		case err != nil && tell && e.ID != "" && len(e.ID) <= lowkiq.MaxIDBytes:
			coming, from = append(coming, Entry{Number: e.Number, ID: e.ID, Morgue: e.Morgue, Err: err}), append(from, e)
		case err != nil:
			if err := stays(ctx, e, err); err != nil {
				return err
			}
		case len(to.Payloads) == 0: // what was in flight lies in the morgue
			empty = append(empty, e.Number)
		default:
			coming, from = append(coming, to), append(from, e)
		}
	}
	if err := m.Old.Forget(ctx, empty...); err != nil { // not kept: nothing of it comes, so that nothing of it would go back
		return err
	}
	if len(coming) > 0 {
		m.sent = true
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
					if from[i].Flight != nil && len(m.flown) < mostFlown {
						m.flown = append(m.flown, from[i].ID)
					}
				}
			case first == nil:
				first = r.Err
			}
		}
		for _, i := range refused {
			if err := stays(ctx, from[i], results[i].Refused); err != nil {
				return err
			}
		}
		if first != nil {
			return cmp.Or(m.forget(ctx, done), first)
		}
	}
	if err := m.forget(ctx, done); err != nil {
		return err
	}
	m.progress(len(entries))
	return nil
}

func (m *Mover) forget(ctx context.Context, numbers []int64) error {
	if m.Keep > 0 {
		return m.Old.Keep(ctx, m.Keep, numbers...)
	}
	return m.Old.Forget(ctx, numbers...)
}

func (m *Mover) putBack(ctx context.Context, e *rubyqueue.Entry, reason error) error {
	m.leave(e, reason)
	if m.LeftCount() > maxLeft {
		return fmt.Errorf("more than %d ids cannot be moved; the last one: %q %w", maxLeft, e.ID, reason)
	}
	if err := m.Old.PutBack(ctx, e.Number); err != nil {
		return working(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Flight != nil && m.flights != nil {
		m.flights[e.ID] = []int{e.Flight.Shard} // as it was
	}
	return nil
}

// working says of a worker that has come what [ErrWorking] says.
func working(err error) error {
	if errors.Is(err, rubyqueue.ErrFlight) {
		return fmt.Errorf("%w: %w", ErrWorking, err)
	}
	return err
}

// takeJobs takes jobs in order of their due times, then their ids: what is due already runs in this order.
func (m *Mover) takeJobs(ctx context.Context, give func([]*rubyqueue.Entry) error) error {
	flights, err := m.Old.Flights(ctx)
	if err == nil {
		err = m.dead(flights)
	}
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

// Mark makes the first look at what is in flight, and marks it: what a worker takes from then on, the same ids as well, is told from it. A
// later call does nothing.
func (m *Mover) Mark(ctx context.Context) error {
	if m.marked {
		return nil
	}
	flights, err := m.Old.Flights(ctx)
	if err == nil {
		err = m.dead(flights)
	}
	if err == nil {
		err = m.Old.Mark(ctx, flights)
	}
	m.marked = err == nil
	return err
}

// dead says that what is in flight was so from the first look on. What a process of Ruby's took since is in its hands: moved, it
// would run twice.
func (m *Mover) dead(flights rubyqueue.Flights) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flights == nil {
		m.flights = maps.Clone(flights)
		return nil
	}
	for id, shards := range flights {
		for _, shard := range shards {
			if !slices.Contains(m.flights[id], shard) {
				return fmt.Errorf("%w (%q came to be in flight)", ErrWorking, id)
			}
		}
	}
	return nil
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
			return working(err)
		}
		m.mu.Lock()
		for _, id := range ids[:len(entries)] {
			delete(m.flights, id) // in flight again, it is a worker's
		}
		m.mu.Unlock()
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
