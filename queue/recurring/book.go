package recurring

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// Errors of changes.
var (
	ErrUnknown = errors.New("nothing recurs by this name")
	ErrExists  = errors.New("something recurs by this name already")
	ErrOfFile  = errors.New("it is from the file of a node")
	ErrTooMany = errors.New("too many entries")
)

// Origin is where an entry comes from.
type Origin string

// The origins.
const (
	OfFile    Origin = "file"     // of a node's configuration
	AtRunTime Origin = "run time" // somebody has added it
)

// Entry is something that recurs. Times are by Redis's clock.
type Entry struct {
	Name string `json:"name"`
	Spec
	Origin   Origin     `json:"origin"`
	Edited   bool       `json:"edited,omitempty"` // at run time, of an entry of a file; Reset ends that
	Paused   bool       `json:"paused,omitempty"`
	Schedule string     `json:"schedule"`        // in words
	Next     *time.Time `json:"next,omitempty"`  // when it is pushed next
	Last     *time.Time `json:"last,omitempty"`  // the tick that was last pushed, left out or refused
	Pushed   *time.Time `json:"at,omitempty"`    // when that was
	Missed   int64      `json:"missed_ticks"`    // how many ticks were left out or refused
	Error    string     `json:"error,omitempty"` // why the last tick was refused, or the entry cannot be read
	// Late is for how long its tick has been due, seconds.
	Late float64 `json:"late,omitempty"`
}

// stored is an entry as Redis has it.
type stored struct {
	Rev    int64 `json:"rev"`
	File   *Spec `json:"file,omitempty"`  // as a file of nodes has it
	Since  int64 `json:"since,omitempty"` // when the process began whose file that is, us
	Edit   *Spec `json:"edit,omitempty"`  // as it was added or edited at run time; it counts
	Paused bool  `json:"paused,omitempty"`
}

// spec is what counts.
func (s stored) spec() Spec { return *cmp.Or(s.Edit, s.File, &Spec{}) }

// kept is what Redis keeps of an entry's last tick.
type kept struct {
	Tick   int64  `json:"tick"` // us
	At     int64  `json:"at"`   // us
	Missed int64  `json:"missed,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Book holds the entries of a cluster. It is safe for concurrent use.
type Book struct {
	client *queue.Client
	db     *redisdb.DB
}

// Of is the book of the cluster whose client this is.
func Of(client *queue.Client) *Book { return &Book{client, client.DB()} }

func (b *Book) keys() []string {
	return []string{b.db.Keys.Recurring(), b.db.Keys.Ticks(), b.db.Keys.Ticked()}
}

// page is what one look at the book has shown.
type page struct {
	now     time.Time // Redis's clock
	rev     string
	entries map[string]string // nil if the revision is known
	ticks   map[string]time.Time
	ticked  map[string]kept
}

// read looks at all, or, if the revision is still that, at what is due.
func (b *Book) read(ctx context.Context, rev string) (page, error) {
	reply, err := b.db.Run(ctx, b.db.Scripts.Ticking, b.keys(), rev)
	if err != nil {
		return page{}, err
	}
	parts := redisdb.List(reply)
	if len(parts) != 5 {
		return page{}, fmt.Errorf("ticking answered %.50v", reply)
	}
	p := page{now: time.UnixMicro(redisdb.Int(parts[0])), rev: redisdb.Text(parts[1]), ticks: map[string]time.Time{}, ticked: map[string]kept{}}
	if flat := redisdb.Texts(parts[2]); len(flat) > 0 || p.rev != rev {
		p.entries = map[string]string{}
		for i := 0; i+1 < len(flat); i += 2 {
			if flat[i] != "#" {
				p.entries[flat[i]] = flat[i+1]
			}
		}
	}
	flat := redisdb.Texts(parts[3])
	for i := 0; i+1 < len(flat); i += 2 {
		var us float64
		if _, err := fmt.Sscan(flat[i+1], &us); err != nil {
			return page{}, fmt.Errorf("tick of %q: %w", flat[i], err)
		}
		p.ticks[flat[i]] = time.UnixMicro(int64(us))
	}
	flat = redisdb.Texts(parts[4])
	for i := 0; i+1 < len(flat); i += 2 {
		var of kept
		if json.Unmarshal([]byte(flat[i+1]), &of) == nil { // else it is written anew with the next tick
			p.ticked[flat[i]] = of
		}
	}
	return p, nil
}

// List is all that recurs, by name.
func (b *Book) List(ctx context.Context) ([]Entry, error) {
	p, err := b.read(ctx, "")
	if err != nil {
		return nil, err
	}
	all := make([]Entry, 0, len(p.entries))
	for _, name := range slices.Sorted(maps.Keys(p.entries)) {
		all = append(all, p.entry(name))
	}
	return all, nil
}

// Unreadable says what is wrong with entries that cannot be read, and so are not pushed.
func (b *Book) Unreadable(ctx context.Context) (wrong []error, err error) {
	p, err := b.read(ctx, "")
	for _, name := range slices.Sorted(maps.Keys(p.entries)) {
		if _, err := parse(name, p.entries[name]); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong, err
}

// Entry is one of them; ErrUnknown.
func (b *Book) Entry(ctx context.Context, name string) (Entry, error) {
	p, err := b.read(ctx, "")
	if err == nil {
		if _, err = p.stored(name); !errors.Is(err, ErrUnknown) {
			return p.entry(name), nil // with what is wrong, if it cannot be read
		}
	}
	return Entry{}, err
}

// stored is the entry of a name; ErrUnknown with the known names.
func (p page) stored(name string) (stored, error) {
	text, ok := p.entries[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(p.entries)), ", ")
		return stored{}, fmt.Errorf("%w: %q (known: %.300s)", ErrUnknown, name, known)
	}
	return parse(name, text)
}

func parse(name, text string) (s stored, err error) {
	if err = json.Unmarshal([]byte(text), &s); err == nil {
		err = s.spec().Check(name)
	}
	if err != nil {
		return s, fmt.Errorf("entry %q in Redis cannot be read: %w", name, err)
	}
	return s, nil
}

func (p page) entry(name string) Entry {
	e := Entry{Name: name, Origin: AtRunTime}
	s, err := parse(name, p.entries[name])
	if s.File != nil {
		e.Origin, e.Edited = OfFile, s.Edit != nil
	}
	e.Spec, e.Paused = s.spec().withDefaults(name), s.Paused
	if of, ok := p.ticked[name]; ok {
		last, at := time.UnixMicro(of.Tick).UTC(), time.UnixMicro(of.At).UTC()
		e.Last, e.Pushed, e.Missed, e.Error = &last, &at, of.Missed, of.Error
	}
	if err != nil {
		e.Error = err.Error()
		return e
	}
	schedule, _ := e.schedule() // it was checked
	e.Schedule = schedule.Describe()
	if tick, ok := p.ticks[name]; ok {
		next := tick.Add(calendar.Jitter(name, tick, time.Duration(e.Jitter))).UTC()
		e.Next, e.Late = &next, max(0, p.now.Sub(next).Seconds())
	}
	return e
}

// Upcoming are the next n times, 1 to 1000, at which an entry is pushed.
func (b *Book) Upcoming(ctx context.Context, name string, n int) ([]time.Time, error) {
	p, err := b.read(ctx, "")
	if err != nil {
		return nil, err
	}
	s, err := p.stored(name)
	if err != nil {
		return nil, err
	}
	return s.spec().upcoming(name, p.now, n), nil
}

func (s Spec) upcoming(name string, after time.Time, n int) []time.Time {
	schedule, err := s.schedule()
	if err != nil {
		return nil
	}
	var times []time.Time
	for tick := after.Add(-time.Duration(s.Jitter)); len(times) < n; {
		tick = schedule.Next(tick)
		if at := tick.Add(calendar.Jitter(name, tick, time.Duration(s.Jitter))); at.After(after) {
			times = append(times, at)
		}
	}
	return times
}

// change is what one name becomes: nil removes it.
type change func(old *stored) (*stored, error)

// write changes the entry of a name. Its next tick is strictly after now if its times are other ones.
func (b *Book) write(ctx context.Context, name string, to change) error {
	for {
		p, err := b.read(ctx, "")
		if err != nil {
			return err
		}
		var old *stored
		if text, ok := p.entries[name]; ok {
			s, err := parse(name, text)
			if err != nil {
				s = stored{Edit: &Spec{}} // what cannot be read may be replaced and removed
			}
			old = &s
		}
		next, err := to(old)
		if err != nil || next == old {
			return err
		}
		text, tick := "", ""
		if next != nil {
			if text, tick, err = p.rewritten(name, old, *next); err != nil {
				return err
			}
			if grows := len(text) - len(p.entries[name]); grows > 0 && (old == nil || old.Paused == next.Paused) && p.size()+grows > maxEntries {
				return fmt.Errorf("%w: with %q they would have %d bytes, at most %d are allowed", ErrTooMany, name, p.size()+grows, maxEntries)
			}
		}
		reply, err := b.db.Run(ctx, b.db.Scripts.Recur, b.keys(), name, p.rev, text, tick, MaxEntries)
		switch {
		case err != nil:
			return err
		case reply == int64(1):
			return nil
		case reply == int64(2):
			return fmt.Errorf("%w: %d recur, which is the limit", ErrTooMany, MaxEntries)
		}
	}
}

// size is how many bytes all entries have.
func (p page) size() (n int) {
	for _, text := range p.entries {
		n += len(text)
	}
	return n
}

// rewritten are the texts of an entry and of its next tick, "" for the one it has.
func (p page) rewritten(name string, old *stored, next stored) (text, tick string, err error) {
	if _, err := fmt.Sscan(p.rev, &next.Rev); err != nil {
		return "", "", fmt.Errorf("revision %q of what recurs: %w", p.rev, err)
	}
	next.Rev++
	data, err := asGiven(next)
	if err != nil {
		return "", "", err
	}
	if len(data) > maxSpec {
		return "", "", fmt.Errorf("%w %q: %d bytes, at most %d are allowed", ErrSpec, name, len(data), maxSpec)
	}
	schedule, err := next.spec().schedule()
	if err != nil {
		return "", "", err
	}
	if _, has := p.ticks[name]; !has || old == nil || !old.spec().sameTimes(next.spec()) || old.Paused != next.Paused {
		tick = fmt.Sprint(schedule.Next(p.now).UnixMicro())
	}
	return string(data), tick, nil
}

// asGiven writes JSON in which payloads keep their <, > and &.
func asGiven(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), err
}

func (s Spec) sameTimes(other Spec) bool {
	return s.Cron == other.Cron && cmp.Or(s.Zone, defaultZone) == cmp.Or(other.Zone, defaultZone) && s.Every == other.Every && s.Offset == other.Offset
}

// found is a change of an entry that must be there.
func found(name string, to change) change {
	return func(old *stored) (*stored, error) {
		if old == nil {
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
		return to(old)
	}
}

// Add adds an entry at run time. ErrExists; its queue must be registered.
func (b *Book) Add(ctx context.Context, name string, spec Spec) error {
	if err := b.check(ctx, name, spec); err != nil {
		return err
	}
	return b.write(ctx, name, func(old *stored) (*stored, error) {
		if old != nil {
			return nil, fmt.Errorf("%w: %q; edit changes it", ErrExists, name)
		}
		return &stored{Edit: &spec}, nil
	})
}

func (b *Book) check(ctx context.Context, name string, spec Spec) error {
	if err := spec.Check(name); err != nil {
		return err
	}
	_, err := b.client.Queue(ctx, spec.Queue)
	return err
}

// Edit changes an entry at run time, that of a file until Reset. Its next tick is after now.
func (b *Book) Edit(ctx context.Context, name string, edit func(*Spec) error) error {
	return b.write(ctx, name, found(name, func(old *stored) (*stored, error) {
		spec := old.spec()
		if err := edit(&spec); err != nil {
			return nil, err
		}
		if err := b.check(ctx, name, spec); err != nil {
			return nil, err
		}
		if spec.equal(old.spec()) {
			return old, nil
		}
		next := *old
		next.Edit = &spec
		return &next, nil
	}))
}

// Pause lets an entry's ticks go by, Resume ends that: those that have gone by are not caught up.
func (b *Book) Pause(ctx context.Context, name string) error { return b.setPaused(ctx, name, true) }

// Resume ends a pause.
func (b *Book) Resume(ctx context.Context, name string) error { return b.setPaused(ctx, name, false) }

func (b *Book) setPaused(ctx context.Context, name string, paused bool) error {
	return b.write(ctx, name, found(name, func(old *stored) (*stored, error) {
		if old.Paused == paused {
			return old, nil
		}
		next := *old
		next.Paused = paused
		return &next, nil
	}))
}

// Remove removes an entry that was added at run time. ErrOfFile.
func (b *Book) Remove(ctx context.Context, name string) error {
	return b.write(ctx, name, found(name, func(old *stored) (*stored, error) {
		if old.File != nil {
			return nil, fmt.Errorf("%q is not removed: %w; pause it, or take it out of the file", name, ErrOfFile)
		}
		return nil, nil
	}))
}

// Reset makes an entry what its file says.
func (b *Book) Reset(ctx context.Context, name string) error {
	return b.write(ctx, name, found(name, func(old *stored) (*stored, error) {
		switch {
		case old.File == nil:
			return nil, fmt.Errorf("%w %q: no file has it, so there is nothing to go back to; remove ends it", ErrSpec, name)
		case old.Edit == nil:
			return old, nil
		}
		next := *old
		next.Edit = nil
		return &next, nil
	}))
}

// Run pushes an entry's job now, whatever its ticks are.
func (b *Book) Run(ctx context.Context, name string) (queue.Result, error) {
	p, err := b.read(ctx, "")
	if err != nil {
		return queue.Result{}, err
	}
	s, err := p.stored(name)
	if err != nil {
		return queue.Result{}, err
	}
	results, err := b.client.Push(ctx, s.spec().Queue, s.spec().push(name, p.now, 0))
	if err != nil {
		return queue.Result{}, err
	}
	return results[0], nil
}

// Declare writes what the file of a process says, which began at since by Redis's clock. What a process that began
// later has written stays.
func (b *Book) Declare(ctx context.Context, file map[string]Spec, since time.Time) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file)) {
		spec := file[name]
		err := b.write(ctx, name, func(old *stored) (*stored, error) {
			next := stored{}
			if old != nil {
				next = *old
			}
			if old != nil && (old.Edit != nil && old.Edit.Queue == "") { // it could not be read
				next = stored{}
			}
			if next.File != nil && next.Since >= since.UnixMicro() {
				return old, nil
			}
			next.File, next.Since = &spec, since.UnixMicro()
			return &next, nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("recurring %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// drop makes an entry one that no file has: it goes, unless it was edited at run time.
func (b *Book) drop(ctx context.Context, name string, since int64) error {
	return b.write(ctx, name, func(old *stored) (*stored, error) {
		if old == nil || old.File == nil || old.Since != since {
			return old, nil
		}
		if old.Edit == nil {
			return nil, nil
		}
		next := *old
		next.File, next.Since = nil, 0
		return &next, nil
	})
}

// advance has the next tick take the place of one, if that is still an entry's, and the entry is what
// was read. zero: it had none.
func (b *Book) advance(ctx context.Context, name, text string, tick, next time.Time, of kept) (bool, error) {
	was := ""
	if !tick.IsZero() {
		was = fmt.Sprint(tick.UnixMicro())
	}
	data, err := json.Marshal(of)
	if err != nil {
		return false, err
	}
	reply, err := b.db.Run(ctx, b.db.Scripts.Tick, b.keys(), name, text, was, next.UnixMicro(), data)
	return reply == int64(1), err
}

// deliver pushes a tick, once however often it is asked to.
func (b *Book) deliver(ctx context.Context, name string, spec Spec, tick time.Time, missed int64) error {
	q, err := b.client.Queue(ctx, spec.Queue)
	if err != nil {
		return err
	}
	_, err = q.Deliver(ctx, queue.Delivery{Source: "recurring/" + name, Number: tick.UnixMicro()}, spec.push(name, tick, missed))
	if errors.Is(err, queue.ErrDelivered) {
		return nil
	}
	return err
}
