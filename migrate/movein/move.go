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
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
)

// maxLeft is how many ids may stay. Their names are kept in memory, so that each is tried once.
const maxLeft = 100_000

// maxInFlightNames is how many ids [Mover.MovedInFlight] names.
const maxInFlightNames = 1000

// batchesAhead is how many batches are taken before they are imported.
const batchesAhead = 4

// Mover moves a queue. Its fields are set before the first call.
type Mover struct {
	Old    *rubyqueue.Queue
	Shards int // of the old queue
	// Import brings entries into the new queue in order, each once for its source and number. It returns a result for every
	// entry, and an error if an entry was not imported. After a refusal it may also refuse later entries of the same id and
	// source.
	Import func(ctx context.Context, source string, entries []Entry) ([]Result, error)
	// SealSource ends a source: no more of its entries are imported. A nil SealSource means that no other process imports.
	SealSource func(ctx context.Context, source string) error
	// ForgetSource forgets a source that is sealed and has no entries left. It may be called twice for a source. A nil
	// ForgetSource keeps sources known.
	ForgetSource func(ctx context.Context, source string) error
	Form         Form   // "" for the form of an earlier move; see AgreeOnWay
	To           string // the name of the new queue
	Limits       Limits
	DueNow       bool          // move jobs that Ruby never runs; they become due now
	Keep         time.Duration // for how long the old Redis keeps moved jobs for MoveBack; 0 keeps none
	KeepOpen     bool          // Move leaves the run open for the next Move; EndRun ends it

	MovedBefore bool // AgreeOnWay has found an earlier move

	OnProgress func(n int)  // called with the number of ids that were read or moved; may be nil
	OnLeft     func(l Left) // called for each job that stays; may be nil

	counted       int64    // the highest number that was counted as moved; an entry that could not be forgotten is imported again
	source        string   // of the run, "" without a run
	movedInFlight []string // the first ids that were moved while in flight
	sent          bool     // the source was used for an import

	mu      sync.Mutex
	flights rubyqueue.Flights // those of the first read that were not taken since
	marked  bool              // MarkFlights has marked them
	left    map[string]bool   // jobs that stay, by leftName
}

func (m *Mover) reportProgress(n int) {
	if m.OnProgress != nil {
		m.OnProgress(n)
	}
}

func leftName(id string, morgue bool) string {
	if morgue {
		return "m" + id
	}
	return "j" + id
}

// recordLeft records that an entry stays.
func (m *Mover) recordLeft(e *rubyqueue.Entry, reason error) {
	m.mu.Lock()
	name := leftName(e.ID, e.Morgue)
	first := !m.left[name]
	if m.left == nil {
		m.left = map[string]bool{}
	}
	m.left[name] = true
	m.mu.Unlock()
	if first && m.OnLeft != nil {
		m.OnLeft(Left{e.ID, e.Morgue, reason.Error()})
	}
}

func (m *Mover) isLeft(id string, morgue bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[leftName(id, morgue)]
}

// MovedInFlight returns the first 1,000 ids that were moved while in flight. If a worker lives after all, it runs them as
// well.
func (m *Mover) MovedInFlight() []string { return m.movedInFlight }

// LeftCount returns how many jobs and entries of the morgue stay.
func (m *Mover) LeftCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.left)
}

// Move moves all jobs and returns how many it moved. It may be repeated after any error, and after its process was killed.
func (m *Mover) Move(ctx context.Context) (moved Counts, err error) {
	defer func() {
		moved.Left = m.LeftCount()
		if err != nil {
			m.source = "" // the next call begins as another process would
		}
	}()
	if err := m.beginRun(ctx, &moved); err != nil {
		return moved, err
	}
	if err := m.takeAndImport(ctx, m.source, &moved); err != nil {
		return moved, err
	}
	if err := m.Old.SweepSets(ctx); err != nil || m.KeepOpen {
		return moved, err
	}
	return moved, m.EndRun(ctx)
}

// ErrWay is the error of a move that uses another form or another queue than the move before, and of a first move without a
// form.
var ErrWay = errors.New("a worker's jobs move in one form into one queue")

// AgreeOnWay takes over the form of an earlier move, if any. The way of the earlier move holds until all jobs are back.
func (m *Mover) AgreeOnWay(ctx context.Context) error {
	was, err := m.Old.ReadWay(ctx)
	switch {
	case err != nil:
		return err
	case was == (rubyqueue.Way{}) && m.Form == "":
		return fmt.Errorf("nothing was moved before, so --payload must be json or marshal: %w", ErrWay)
	case was == (rubyqueue.Way{}):
		return nil
	}
	if err := m.checkWay(was); err != nil {
		return err
	}
	m.Form, m.MovedBefore = Form(was.Form), true
	return nil
}

// checkWay returns an error if this move has another way than the earlier move.
func (m *Mover) checkWay(was rubyqueue.Way) error {
	switch {
	case m.Form != "" && string(m.Form) != was.Form:
		return fmt.Errorf("it was moved with --payload %s, not %s; move it back first (--back): %w", was.Form, m.Form, ErrWay)
	case m.To != was.To:
		return fmt.Errorf("it was moved to %s, not to %s; move it back first (--back): %w", was.To, m.To, ErrWay)
	}
	return nil
}

// claimWay stores the way of this move. If several first moves begin at once, only those with the way that was stored first
// go on.
func (m *Mover) claimWay(ctx context.Context) error {
	noted, err := m.Old.SetWay(ctx, rubyqueue.Way{Form: string(m.Form), To: m.To})
	if err != nil {
		return err
	}
	return m.checkWay(noted)
}

// ErrGoingBack means that a move back was begun and has not ended.
var ErrGoingBack = errors.New("a migration back to Ruby's Lowkiq is not at its end: run it again")

// beginRun starts a run unless there is a run, and imports the entries that an earlier run had taken.
func (m *Mover) beginRun(ctx context.Context, moved *Counts) error {
	if m.source != "" {
		return nil
	}
	if err := m.AgreeOnWay(ctx); err != nil {
		return err
	}
	if err := m.MarkFlights(ctx); err != nil {
		return err
	}
	run, err := m.Old.BeginRun(ctx)
	if err != nil {
		return err
	}
	staged, err := m.Old.ReadStaged(ctx, 0)
	if err != nil {
		return err
	}
	if len(staged) > 0 {
		return ErrGoingBack
	}
	if err := m.claimWay(ctx); err != nil {
		return err
	}
	return m.inheritRun(ctx, run, moved)
}

// inheritRun gives the run a source that only this process uses.
//
// An earlier process may be frozen in the middle of an import. When it wakes, the new queue must either have its entries
// already or refuse them. So the entries that it took are first imported under their own source and numbers. Those that are
// refused are put back only after that source is sealed.
func (m *Mover) inheritRun(ctx context.Context, run rubyqueue.Run, moved *Counts) error {
	m.counted, m.sent, m.source = 0, false, run.Source
	if run.Sealing != "" {
		if err := m.sealSource(ctx, run, moved); err != nil {
			return err
		}
	}
	if run.Fresh {
		return nil
	}
	stays := func(_ context.Context, e *rubyqueue.Entry, reason error) error {
		m.recordLeft(e, reason)
		return nil
	}
	if err := m.importTaken(ctx, m.source, math.MaxInt64, moved, stays); err != nil {
		return err
	}
	run, err := m.Old.RotateSource(ctx)
	if err != nil {
		return err
	}
	m.counted, m.sent, m.source = 0, false, run.Source
	return m.sealSource(ctx, run, moved)
}

// sealSource seals a source after every entry that is still taken was refused. An entry that the earlier process did import
// counts as moved. The rest is put back.
func (m *Mover) sealSource(ctx context.Context, run rubyqueue.Run, moved *Counts) error {
	if m.SealSource != nil {
		if err := m.SealSource(ctx, run.Sealing); err != nil {
			return err
		}
	}
	if err := m.importTaken(ctx, run.Sealing, run.Bound, moved, m.putBack); err != nil {
		return err
	}
	if m.ForgetSource != nil {
		if err := m.ForgetSource(ctx, run.Sealing); err != nil {
			return err
		}
	}
	return m.Old.MarkSealed(ctx, run)
}

// importTaken imports the entries that were taken and are not forgotten, up to a number. The new queue also learns of
// entries that cannot be moved.
func (m *Mover) importTaken(ctx context.Context, source string, bound int64, moved *Counts, stays refusing) error {
	for last := int64(0); ; {
		entries, err := m.Old.ReadTaken(ctx, last, m.Limits.Payloads)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e *rubyqueue.Entry) bool { return e == nil || e.Number > bound })
		if len(entries) == 0 {
			return nil
		}
		last = entries[len(entries)-1].Number
		if err := m.importEntries(ctx, source, entries, moved, stays, true); err != nil {
			return err
		}
	}
}

// EndRun ends the run that KeepOpen has left open. The old Redis then holds nothing of the migration but the jobs that it
// keeps.
func (m *Mover) EndRun(ctx context.Context) error {
	if m.source == "" {
		return nil
	}
	if !m.sent {
		m.source = ""
		return m.Old.EndRun(ctx)
	}
	run, err := m.Old.EndSealing(ctx)
	if err != nil {
		return err
	}
	m.source = ""
	return m.sealSource(ctx, run, &Counts{})
}

// refusing handles an entry that cannot be moved.
type refusing func(ctx context.Context, e *rubyqueue.Entry, reason error) error

// takeAndImport takes all jobs once, and imports them while it takes more.
func (m *Mover) takeAndImport(ctx context.Context, source string, moved *Counts) error {
	work, ctx := errgroup.WithContext(ctx)
	taken := make(chan []*rubyqueue.Entry, batchesAhead)
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
			if err := m.importEntries(ctx, source, entries, moved, m.putBack, false); err != nil {
				return err
			}
		}
		return nil
	})
	return work.Wait()
}

// importEntries imports entries and forgets those that were imported. stays gets those that cannot be moved. With tell the
// new queue learns of these as well.
func (m *Mover) importEntries(ctx context.Context, source string, entries []*rubyqueue.Entry, moved *Counts, stays refusing, tell bool) error {
	var coming []Entry
	var from []*rubyqueue.Entry
	var done, empty []int64
	for _, e := range entries {
		if e == nil {
			continue
		}
		to, _, err := m.convertEntry(e)
		switch {
		case err != nil && tell && e.ID != "" && len(e.ID) <= lowkiq.MaxIDBytes:
			coming, from = append(coming, Entry{Number: e.Number, ID: e.ID, Morgue: e.Morgue, Err: err}), append(from, e)
		case err != nil:
			if err := stays(ctx, e, err); err != nil {
				return err
			}
		case len(to.Payloads) == 0: // the payload that was in flight lies in the morgue
			empty = append(empty, e.Number)
		default:
			coming, from = append(coming, to), append(from, e)
		}
	}
	if err := m.Old.Forget(ctx, empty...); err != nil { // these are not kept, because they would not go back
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
					moved.countEntry(from[i], len(coming[i].Payloads), nil)
					if from[i].Flight != nil && len(m.movedInFlight) < maxInFlightNames {
						m.movedInFlight = append(m.movedInFlight, from[i].ID)
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
			return cmp.Or(m.forgetEntries(ctx, done), first)
		}
	}
	if err := m.forgetEntries(ctx, done); err != nil {
		return err
	}
	m.reportProgress(len(entries))
	return nil
}

func (m *Mover) forgetEntries(ctx context.Context, numbers []int64) error {
	if m.Keep > 0 {
		return m.Old.Keep(ctx, m.Keep, numbers...)
	}
	return m.Old.Forget(ctx, numbers...)
}

// putBack puts an entry back into the old queue, with the reason in the report. Above maxLeft ids it returns an error, and
// the entry stays taken for the next Mover.
func (m *Mover) putBack(ctx context.Context, e *rubyqueue.Entry, reason error) error {
	m.recordLeft(e, reason)
	if m.LeftCount() > maxLeft {
		return fmt.Errorf("more than %d ids cannot be moved; the last of them: %q %w", maxLeft, e.ID, reason)
	}
	if err := m.Old.PutBack(ctx, e.Number); err != nil {
		return asWorking(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Flight != nil && m.flights != nil {
		m.flights[e.ID] = []int{e.Flight.Shard} // as before it was taken
	}
	return nil
}

// asWorking wraps the error of an id that a worker has taken in [ErrWorking].
func asWorking(err error) error {
	if errors.Is(err, rubyqueue.ErrFlight) {
		return fmt.Errorf("%w: %w", ErrWorking, err)
	}
	return err
}

// takeJobs takes jobs in order of their due times, then their ids. Jobs that are due run in this order.
func (m *Mover) takeJobs(ctx context.Context, give func([]*rubyqueue.Entry) error) error {
	flights, err := m.Old.ReadFlights(ctx)
	if err == nil {
		err = m.checkFlights(flights)
	}
	if err != nil {
		return err
	}
	flown, err := m.flightsDue(ctx, flights)
	if err != nil {
		return err
	}
	from := 0                   // ids that were skipped and still wait
	passed := map[string]bool{} // the skipped ids that are in flight
	for {
		waiting, err := m.Old.ReadWaiting(ctx, from, 10*pageSize)
		if err != nil {
			return err
		}
		var batch []rubyqueue.Due
		for _, due := range waiting {
			switch {
			case flights[due.ID] != nil:
				passed[due.ID] = true
				from++
			case m.isLeft(due.ID, false):
				from++
			default:
				batch = append(batch, due)
			}
		}
		n := len(flown)
		if len(waiting) > 0 {
			n = 0
			for n < len(flown) && compareDue(flown[n], waiting[len(waiting)-1]) <= 0 {
				n++
			}
		}
		for _, due := range flown[:n] {
			if !m.isLeft(due.ID, false) {
				batch = append(batch, due)
			}
		}
		flown = flown[n:]
		if len(waiting) == 0 && len(batch) == 0 {
			return nil
		}
		slices.SortFunc(batch, compareDue)
		if err := m.takeBatch(ctx, batch, flights, give); err != nil {
			return err
		}
		for _, due := range batch {
			delete(flights, due.ID) // pushed again it is an ordinary waiting id
			if passed[due.ID] {
				delete(passed, due.ID)
				from--
			}
		}
	}
}

// MarkFlights reads the flights for the first time and marks their shards. The marks show whether a worker takes anything
// from then on, even the same ids. Later calls do nothing.
func (m *Mover) MarkFlights(ctx context.Context) error {
	if m.marked {
		return nil
	}
	flights, err := m.Old.ReadFlights(ctx)
	if err == nil {
		err = m.checkFlights(flights)
	}
	if err == nil {
		err = m.Old.MarkFlights(ctx, flights)
	}
	m.marked = err == nil
	return err
}

// checkFlights returns [ErrWorking] if an id came into flight after the first read. A process of Ruby's took it since and is
// handling it, so that after a move it would run twice.
func (m *Mover) checkFlights(flights rubyqueue.Flights) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flights == nil {
		m.flights = maps.Clone(flights)
		return nil
	}
	for id, shards := range flights {
		for _, shard := range shards {
			if !slices.Contains(m.flights[id], shard) {
				return fmt.Errorf("%w (it has taken %q)", ErrWorking, id)
			}
		}
	}
	return nil
}

// compareDue orders ids by their due time, then by the id.
func compareDue(a, b rubyqueue.Due) int {
	return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.ID, b.ID))
}

// takeBatch takes the ids of a batch and gives their entries to give.
func (m *Mover) takeBatch(ctx context.Context, batch []rubyqueue.Due, flights rubyqueue.Flights, give func([]*rubyqueue.Entry) error) error {
	ids := make([]string, len(batch))
	for i, due := range batch {
		ids[i] = due.ID
	}
	for len(ids) > 0 {
		entries, err := m.Old.Take(ctx, ids, flights, m.Limits.Payloads)
		if err != nil {
			return asWorking(err)
		}
		m.mu.Lock()
		for _, id := range ids[:len(entries)] {
			delete(m.flights, id) // if it comes into flight again, a worker has it
		}
		m.mu.Unlock()
		ids = ids[len(entries):]
		if err := give(entries); err != nil {
			return err
		}
	}
	return nil
}

// flightsDue returns the due times of the flights, in order.
func (m *Mover) flightsDue(ctx context.Context, flights rubyqueue.Flights) (all []rubyqueue.Due, err error) {
	ids := make([]string, 0, len(flights))
	for id := range flights {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for len(ids) > 0 {
		entries, err := m.Old.Peek(ctx, ids, flights, m.Limits.Payloads)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e != nil {
				all = append(all, rubyqueue.Due{ID: e.ID, At: rubyqueue.SettleEntry(e).At})
			}
		}
		ids = ids[len(entries):]
	}
	slices.SortFunc(all, compareDue)
	return all, nil
}

// takeMorgue takes the buried jobs, in order of their burials.
func (m *Mover) takeMorgue(ctx context.Context, give func([]*rubyqueue.Entry) error) error {
	for from := 0; ; {
		buried, err := m.Old.ReadMorgue(ctx, from, 10*pageSize)
		if err != nil || len(buried) == 0 {
			return err
		}
		var ids []string
		for _, due := range buried {
			if m.isLeft(due.ID, true) {
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
