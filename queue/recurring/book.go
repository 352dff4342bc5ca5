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
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Errors of changes.
var (
	ErrUnknown = errors.New("there is no recurring entry with this name")
	ErrExists  = errors.New("there is a recurring entry with this name")
	ErrOfFile  = errors.New("it comes from the file of a node")
	ErrTooMany = errors.New("too many entries")
)

// Origin is where an entry comes from.
type Origin string

// The origins.
const (
	OfFile    Origin = "file"     // the configuration of a node
	AtRunTime Origin = "run time" // a request
)

// Entry is a recurring entry. Times are by Redis's clock.
type Entry struct {
	Name string `json:"name"`
	Spec
	Origin   Origin     `json:"origin"`
	Edited   bool       `json:"edited,omitempty"` // an entry of a file was changed at run time; Reset undoes that
	Paused   bool       `json:"paused,omitempty"`
	Schedule string     `json:"schedule"`        // in words
	Next     *time.Time `json:"next,omitempty"`  // time of the next push
	Last     *time.Time `json:"last,omitempty"`  // the last tick that was pushed, left out or refused
	Pushed   *time.Time `json:"at,omitempty"`    // when that happened
	Missed   int64      `json:"missed_ticks"`    // number of ticks that were left out or refused
	Error    string     `json:"error,omitempty"` // why the last tick was refused, or why the entry cannot be read
	// Late is how long its tick has been due, in seconds.
	Late float64 `json:"late,omitempty"`
}

// storedEntry is an entry as Redis keeps it.
type storedEntry struct {
	Rev    int64  `json:"rev"`
	File   *Spec  `json:"file,omitempty"`  // the entry in the file of a node
	Since  int64  `json:"since,omitempty"` // when the process of that file began, us; 0 if it has ended
	By     string `json:"by,omitempty"`    // boot of that process
	Edit   *Spec  `json:"edit,omitempty"`  // the entry as added or edited at run time; it takes precedence
	Paused bool   `json:"paused,omitempty"`
	Above  int64  `json:"above,omitempty"` // numbers of its pushes are above this, because an earlier entry of its name may have used lower numbers
	Then   int64  `json:"then,omitempty"`  // the tick after the push that was under way when the times or the pause changed, us
}

// effectiveSpec returns the spec that takes precedence.
func (s storedEntry) effectiveSpec() Spec { return *cmp.Or(s.Edit, s.File, &Spec{}) }

// nextAfter returns the tick that follows a tick whose push has begun.
func (s storedEntry) nextAfter(schedule calendar.Schedule, tick time.Time) time.Time {
	if then := time.UnixMicro(s.Then); then.After(tick) {
		return then
	}
	return schedule.Next(tick)
}

// lastTick is what Redis keeps of an entry's last tick.
type lastTick struct {
	Tick      int64      `json:"tick,omitempty"` // us
	At        int64      `json:"at,omitempty"`   // us
	Missed    int64      `json:"missed,omitempty"`
	Uncounted int64      `json:"uncounted,omitempty"` // ticks that changes have dropped and no process has counted in its metric yet
	Error     string     `json:"error,omitempty"`
	Number    int64      `json:"number,omitempty"` // number of its last push, which rises whatever the clock does
	Begun     *begunPush `json:"begun,omitempty"`

	text string // text as it was read
}

// begunPush is a push that has begun. The next process finishes it unchanged, even after an edit. Only the
// shard of its old queue and id knows whether it is stored, and an edit may change both.
type begunPush struct {
	Tick   int64 `json:"tick"` // us
	Missed int64 `json:"missed,omitempty"`
	Spec   Spec  `json:"spec"`
}

// encodeJSON returns the text that Redis keeps.
func (k lastTick) encodeJSON() (string, error) {
	text, err := encodeUnescaped(k)
	return string(text), err
}

// Book reads and changes the recurring entries of a cluster. It is safe for concurrent use.
type Book struct {
	client *protocol.Client
	db     *redisdb.DB
}

// Of returns the book of the cluster that client is for.
func Of(client *protocol.Client) *Book { return &Book{client, client.DB()} }

func (b *Book) scriptKeys() []string {
	return []string{b.db.Keys.Recurring(), b.db.Keys.Ticks(), b.db.Keys.Ticked()}
}

// snapshot is the result of a read of the book.
type snapshot struct {
	now     time.Time // Redis's clock
	rev     string
	entries map[string]string // nil if nothing has changed
	ticks   map[string]time.Time
	ticked  map[string]lastTick
	highest int64 // highest number of a push
}

// readSince reads everything, or only what is due if the revision is still rev.
func (b *Book) readSince(ctx context.Context, rev string) (snapshot, error) {
	reply, err := b.db.Run(ctx, b.db.Scripts.Ticking, b.scriptKeys(), rev, "")
	if err != nil {
		return snapshot{}, err
	}
	parts := redisdb.List(reply)
	if len(parts) != 5 {
		return snapshot{}, fmt.Errorf("ticking answered %.50v", reply)
	}
	p := snapshot{now: time.UnixMicro(redisdb.Int(parts[0])), rev: redisdb.Text(parts[1]), ticks: map[string]time.Time{}, ticked: map[string]lastTick{}}
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
			return snapshot{}, fmt.Errorf("tick of %q: %w", flat[i], err)
		}
		p.ticks[flat[i]] = time.UnixMicro(int64(us))
	}
	flat = redisdb.Texts(parts[4])
	for i := 0; i+1 < len(flat); i += 2 {
		if flat[i] == "#" {
			p.highest, _ = strconv.ParseInt(flat[i+1], 10, 64) // the next tick writes it anew if it cannot be read
			continue
		}
		var of lastTick
		if json.Unmarshal([]byte(flat[i+1]), &of) != nil { // the next tick writes it anew
			of = lastTick{}
		}
		of.text = flat[i+1]
		p.ticked[flat[i]] = of
	}
	return p, nil
}

// copiesOfBook is how many copies of the text of all entries a request has in memory: Redis's
// reply, entries, and an answer.
const copiesOfBook = 4

// readAll reads everything. If ctx has a memory account, readAll reserves the memory first.
func (b *Book) readAll(ctx context.Context) (snapshot, error) {
	if memory.AccountOf(ctx) != nil {
		size, err := b.db.Run(ctx, b.db.Scripts.Ticking, b.scriptKeys(), "", "1")
		if err == nil {
			err = memory.Take(ctx, copiesOfBook*redisdb.Int(size))
		}
		if err != nil {
			return snapshot{}, err
		}
	}
	return b.readSince(ctx, "")
}

// List returns all entries by name.
func (b *Book) List(ctx context.Context) ([]Entry, error) {
	p, err := b.readAll(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Entry, 0, len(p.entries))
	for _, name := range slices.Sorted(maps.Keys(p.entries)) {
		all = append(all, p.describeEntry(name))
	}
	return all, nil
}

// Unreadable returns the errors of entries that cannot be read and so are not pushed.
func (b *Book) Unreadable(ctx context.Context) (wrong []error, err error) {
	scoped, closeScope := memory.Scope(ctx)
	defer closeScope()
	p, err := b.readAll(scoped)
	for _, name := range slices.Sorted(maps.Keys(p.entries)) {
		if _, err := parseEntry(name, p.entries[name]); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong, err
}

// Entry returns an entry by name, or ErrUnknown.
func (b *Book) Entry(ctx context.Context, name string) (Entry, error) {
	scoped, closeScope := memory.Scope(ctx)
	defer closeScope()
	p, err := b.readAll(scoped)
	if err == nil {
		if _, err = p.storedEntry(name); !errors.Is(err, ErrUnknown) {
			return p.describeEntry(name), nil // an unreadable entry has an error in it
		}
	}
	return Entry{}, err
}

// storedEntry returns the entry of a name, or ErrUnknown with the known names.
func (p snapshot) storedEntry(name string) (storedEntry, error) {
	text, ok := p.entries[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(p.entries)), ", ")
		return storedEntry{}, fmt.Errorf("%w: %q (known: %.300s)", ErrUnknown, name, known)
	}
	return parseEntry(name, text)
}

func parseEntry(name, text string) (s storedEntry, err error) {
	if err = json.Unmarshal([]byte(text), &s); err == nil {
		err = s.effectiveSpec().Check(name)
	}
	if err != nil {
		return s, fmt.Errorf("entry %q in Redis cannot be read: %w", name, err)
	}
	return s, nil
}

func (p snapshot) describeEntry(name string) Entry {
	e := Entry{Name: name, Origin: AtRunTime}
	s, err := parseEntry(name, p.entries[name])
	if s.File != nil {
		e.Origin, e.Edited = OfFile, s.Edit != nil
	}
	e.Spec, e.Paused = s.effectiveSpec().withDefaults(name), s.Paused
	if of := p.ticked[name]; of.Tick != 0 || of.Missed != 0 {
		last, at := time.UnixMicro(of.Tick).UTC(), time.UnixMicro(of.At).UTC()
		e.Last, e.Pushed, e.Missed, e.Error = &last, &at, of.Missed, of.Error
	}
	if err != nil {
		e.Error = err.Error()
		return e
	}
	schedule, _ := e.parseSchedule() // it was checked
	e.Schedule = schedule.Describe()
	if tick, ok := p.ticks[name]; ok {
		next := tick.Add(calendar.Jitter(name, tick, time.Duration(e.Jitter))).UTC()
		e.Next, e.Late = &next, max(0, p.now.Sub(next).Seconds())
	}
	return e
}

// Upcoming returns the times of the next n pushes of an entry. n must be from 1 to 1000.
func (b *Book) Upcoming(ctx context.Context, name string, n int) ([]time.Time, error) {
	scoped, closeScope := memory.Scope(ctx)
	defer closeScope()
	p, err := b.readAll(scoped)
	if err != nil {
		return nil, err
	}
	s, err := p.storedEntry(name)
	if err != nil {
		return nil, err
	}
	return s.effectiveSpec().upcomingTimes(name, p.now, n), nil
}

func (s Spec) upcomingTimes(name string, after time.Time, n int) []time.Time {
	schedule, err := s.parseSchedule()
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

// entryEdit returns what an entry becomes. nil removes it.
type entryEdit func(old *storedEntry) (*storedEntry, error)

// writeEntry changes the entry of a name.
func (b *Book) writeEntry(ctx context.Context, name string, to entryEdit) error {
	closeScope := func() {}
	defer func() { closeScope() }()
	for {
		closeScope()
		var scoped context.Context
		scoped, closeScope = memory.Scope(ctx)
		p, err := b.readAll(scoped)
		if err != nil {
			return err
		}
		var old *storedEntry
		if text, ok := p.entries[name]; ok {
			s, err := parseEntry(name, text)
			if err != nil {
				s = storedEntry{Edit: &Spec{}} // an unreadable entry may be replaced and removed
			}
			old = &s
		}
		next, err := to(old)
		if err != nil || next == old {
			return err
		}
		text, tick, of := "", "", ""
		if next != nil {
			if text, tick, of, err = p.rewriteEntry(name, old, *next); err != nil {
				return err
			}
			if grows := len(text) - len(p.entries[name]); grows > 0 && (old == nil || old.Paused == next.Paused) && p.totalSize()+grows > maxEntries {
				return fmt.Errorf("%w: with %q they would have %d bytes, at most %d are allowed", ErrTooMany, name, p.totalSize()+grows, maxEntries)
			}
		}
		reply, err := b.db.Run(ctx, b.db.Scripts.Recur, b.scriptKeys(), name, p.rev, text, tick, MaxEntries, p.ticked[name].text, of)
		switch {
		case err != nil:
			return err
		case reply == int64(1):
			return nil
		case reply == int64(2):
			return fmt.Errorf("%w: there are %d, which is the limit", ErrTooMany, MaxEntries)
		}
	}
}

// totalSize returns the bytes of all entries.
func (p snapshot) totalSize() (n int) {
	for _, text := range p.entries {
		n += len(text)
	}
	return n
}

// rewriteEntry returns the text of an entry, its next tick, and its last tick. "" leaves the next
// tick or the last tick as it is. Ticks that the change drops count as missed.
func (p snapshot) rewriteEntry(name string, old *storedEntry, next storedEntry) (text, tick, of string, err error) {
	if _, err := fmt.Sscan(p.rev, &next.Rev); err != nil {
		return "", "", "", fmt.Errorf("revision %q of the recurring entries: %w", p.rev, err)
	}
	next.Rev++
	if old == nil || next.Above == 0 {
		next.Above = p.highest
	}
	schedule, err := next.effectiveSpec().parseSchedule()
	if err != nil {
		return "", "", "", err
	}
	moved := old == nil || !old.effectiveSpec().sameTimes(next.effectiveSpec())
	if last, n := p.countDropped(name, old, next, moved); n > 0 {
		if of, err = last.encodeJSON(); err != nil {
			return "", "", "", err
		}
	}
	_, has := p.ticks[name]
	last := time.UnixMicro(p.ticked[name].Tick)
	begun := p.ticked[name].Begun
	if begun != nil {
		last = time.UnixMicro(begun.Tick)
	}
	// Ticks up to the last tick are not pushed again. Redis's clock may have been ahead.
	to := schedule.Next(laterOf(p.now, last))
	change := true
	switch {
	case moved && begun == nil:
		to = schedule.Next(p.now) // the firer leaves out and reports ticks up to the last tick
	case moved:
	case old.Paused && !next.Paused && has:
		if due := next.effectiveSpec().dueFrom(name, schedule, p.pendingTick(name, old, schedule), p.now); due.Before(to) {
			to = due
		}
	default:
		change = !has && begun == nil
	}
	if change {
		next.Then = 0
	}
	switch {
	case change && begun == nil:
		tick = fmt.Sprint(to.UnixMicro())
	case change: // the tick moves when the push ends
		next.Then = to.UnixMicro()
	}
	if begun != nil && !has {
		tick = fmt.Sprint(begun.Tick)
	}
	data, err := encodeUnescaped(next)
	if err != nil {
		return "", "", "", err
	}
	if len(data) > maxSpec {
		return "", "", "", fmt.Errorf("%w %q: %d bytes, at most %d are allowed", ErrSpec, name, len(data), maxSpec)
	}
	return string(data), tick, of, nil
}

// pendingTick returns an entry's first tick without a begun push.
func (p snapshot) pendingTick(name string, s *storedEntry, schedule calendar.Schedule) time.Time {
	if begun := p.ticked[name].Begun; begun != nil {
		return s.nextAfter(schedule, time.UnixMicro(begun.Tick))
	}
	return p.ticks[name]
}

// dueFrom returns the first tick that is not before a tick and is pushed after now.
func (s Spec) dueFrom(name string, schedule calendar.Schedule, tick, now time.Time) time.Time {
	jitter := time.Duration(s.Jitter)
	if oldest := now.Add(-jitter); tick.Before(oldest) {
		tick = schedule.Next(oldest)
	}
	for !tick.Add(calendar.Jitter(name, tick, jitter)).After(now) {
		tick = schedule.Next(tick)
	}
	return tick
}

// countDropped counts the ticks that a change drops as missed. If the times change these are the
// ticks that have come. If the entry is paused these are the due ticks.
func (p snapshot) countDropped(name string, old *storedEntry, next storedEntry, moved bool) (last lastTick, n int64) {
	last = p.ticked[name]
	if _, has := p.ticks[name]; !has || old == nil || old.Paused || !moved && !next.Paused {
		return last, 0
	}
	spec := old.effectiveSpec()
	schedule, err := spec.parseSchedule()
	if err != nil {
		return last, 0 // an unreadable entry has no times
	}
	tick := p.pendingTick(name, old, schedule)
	jitter, why := time.Duration(spec.Jitter), "the entry was paused"
	if moved {
		jitter, why = 0, "the entry's times were changed"
	}
	if oldest := p.now.Add(-maxPast); tick.Before(oldest) {
		tick = schedule.Next(oldest)
	}
	var dropped time.Time
	for ; !tick.Add(calendar.Jitter(name, tick, jitter)).After(p.now); tick = schedule.Next(tick) {
		n, dropped = n+1, tick
	}
	if n == 0 {
		return last, 0
	}
	last.Missed += n
	last.Uncounted += n
	last.Error = fmt.Sprintf("%d ticks up to %s were left out: %s before they were pushed", n, dropped.UTC().Format(time.RFC3339Nano), why)
	if us := dropped.UnixMicro(); us > last.Tick {
		last.Tick, last.At = us, p.now.UnixMicro()
	}
	return last, n
}

// encodeUnescaped returns JSON whose payloads keep their <, > and &.
func encodeUnescaped(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), err
}

func (s Spec) sameTimes(other Spec) bool {
	return s.Cron == other.Cron && cmp.Or(s.Zone, defaultZone) == cmp.Or(other.Zone, defaultZone) && s.Every == other.Every && s.Offset == other.Offset
}

// existing returns an edit of an entry that must exist.
func existing(name string, to entryEdit) entryEdit {
	return func(old *storedEntry) (*storedEntry, error) {
		if old == nil {
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
		return to(old)
	}
}

// Add adds an entry at run time. Its queue must be registered. If the name exists, Add returns ErrExists.
func (b *Book) Add(ctx context.Context, name string, spec Spec) error {
	if err := b.checkSpec(ctx, name, spec); err != nil {
		return err
	}
	return b.writeEntry(ctx, name, func(old *storedEntry) (*storedEntry, error) {
		if old != nil {
			return nil, fmt.Errorf("%w: %q; edit changes it", ErrExists, name)
		}
		return &storedEntry{Edit: &spec}, nil
	})
}

func (b *Book) checkSpec(ctx context.Context, name string, spec Spec) error {
	if err := spec.Check(name); err != nil {
		return err
	}
	_, err := b.client.Queue(ctx, spec.Queue)
	return err
}

// Edit changes an entry at run time; an entry of a file stays changed until Reset. If its times
// change, the next tick is after now, and ticks that have come and are not pushed count as missed.
func (b *Book) Edit(ctx context.Context, name string, edit func(*Spec) error) error {
	return b.writeEntry(ctx, name, existing(name, func(old *storedEntry) (*storedEntry, error) {
		spec := old.effectiveSpec()
		if err := edit(&spec); err != nil {
			return nil, err
		}
		if err := b.checkSpec(ctx, name, spec); err != nil {
			return nil, err
		}
		if spec.isEqual(old.effectiveSpec()) {
			return old, nil
		}
		next := *old
		next.Edit = &spec
		return &next, nil
	}))
}

// Pause skips the ticks of an entry until Resume. Skipped ticks are not caught up. Ticks that are
// due when the pause begins count as missed.
func (b *Book) Pause(ctx context.Context, name string) error { return b.setPaused(ctx, name, true) }

// Resume ends a pause.
func (b *Book) Resume(ctx context.Context, name string) error { return b.setPaused(ctx, name, false) }

func (b *Book) setPaused(ctx context.Context, name string, paused bool) error {
	return b.writeEntry(ctx, name, existing(name, func(old *storedEntry) (*storedEntry, error) {
		if old.Paused == paused {
			return old, nil
		}
		next := *old
		next.Paused = paused
		return &next, nil
	}))
}

// Remove removes an entry that was added at run time. For an entry of a file it returns ErrOfFile.
func (b *Book) Remove(ctx context.Context, name string) error {
	return b.writeEntry(ctx, name, existing(name, func(old *storedEntry) (*storedEntry, error) {
		if old.File != nil {
			return nil, fmt.Errorf("%q is not removed: %w; pause it, or take it out of the file", name, ErrOfFile)
		}
		return nil, nil
	}))
}

// Reset undoes the changes of an entry of a file.
func (b *Book) Reset(ctx context.Context, name string) error {
	return b.writeEntry(ctx, name, existing(name, func(old *storedEntry) (*storedEntry, error) {
		switch {
		case old.File == nil:
			return nil, fmt.Errorf("%w %q: it is in no file, so it cannot be reset; remove it instead", ErrSpec, name)
		case old.Edit == nil:
			return old, nil
		}
		next := *old
		next.Edit = nil
		return &next, nil
	}))
}

// Run pushes an entry's job now, independently of its ticks.
func (b *Book) Run(ctx context.Context, name string) (protocol.Result, error) {
	scoped, closeScope := memory.Scope(ctx)
	defer closeScope()
	p, err := b.readAll(scoped)
	if err != nil {
		return protocol.Result{}, err
	}
	s, err := p.storedEntry(name)
	if err != nil {
		return protocol.Result{}, err
	}
	results, err := b.client.Push(ctx, s.effectiveSpec().Queue, s.effectiveSpec().buildPush(name, p.now, 0))
	if err != nil {
		return protocol.Result{}, err
	}
	return results[0], nil
}

// Declare writes the entries of the file of a process, which began at since by Redis's clock and
// has the name boot. The entries of a process that began later stay until that process has ended.
func (b *Book) Declare(ctx context.Context, file map[string]Spec, since time.Time, boot string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file)) {
		spec := file[name]
		err := b.writeEntry(ctx, name, func(old *storedEntry) (*storedEntry, error) {
			next := storedEntry{}
			if old != nil {
				next = *old
			}
			if old != nil && (old.Edit != nil && old.Edit.Queue == "") { // it was unreadable
				next = storedEntry{}
			}
			if next.File != nil && next.Since >= since.UnixMicro() {
				return old, nil
			}
			next.File, next.Since, next.By = &spec, since.UnixMicro(), boot
			return &next, nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("recurring %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// dropFile takes an entry out of its file. It removes the entry unless it was edited at run time.
func (b *Book) dropFile(ctx context.Context, name string, since int64) error {
	return b.writeEntry(ctx, name, func(old *storedEntry) (*storedEntry, error) {
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

// releaseFile lets older processes write an entry whose process has ended.
func (b *Book) releaseFile(ctx context.Context, name string, since int64) error {
	return b.writeEntry(ctx, name, func(old *storedEntry) (*storedEntry, error) {
		if old == nil || old.File == nil || old.Since != since || since == 0 {
			return old, nil
		}
		next := *old
		next.Since, next.By = 0, ""
		return &next, nil
	})
}

// advanceTick moves an entry to its next tick, or keeps the tick and records that its push has
// begun. It does so only if the entry's text, its tick and its last tick are still as they were
// read. A zero tick means that the entry had none.
func (b *Book) advanceTick(ctx context.Context, name, text string, tick, next time.Time, was string, of lastTick) (bool, error) {
	due := ""
	if !tick.IsZero() {
		due = fmt.Sprint(tick.UnixMicro())
	}
	data, err := of.encodeJSON()
	if err != nil {
		return false, err
	}
	reply, err := b.db.Run(ctx, b.db.Scripts.Tick, b.scriptKeys(), name, text, due, next.UnixMicro(), was, data, of.Number)
	return reply == int64(1), err
}

// deliverTick pushes a tick. However often it is called with the same number, the tick is pushed
// once.
func (b *Book) deliverTick(ctx context.Context, name string, number int64, of begunPush) error {
	q, err := b.client.Queue(ctx, of.Spec.Queue)
	if err != nil {
		return err
	}
	_, err = q.Deliver(ctx, protocol.Delivery{Source: "recurring/" + name, Number: number}, of.Spec.buildPush(name, time.UnixMicro(of.Tick), of.Missed))
	if errors.Is(err, protocol.ErrDelivered) {
		return nil
	}
	return err
}
