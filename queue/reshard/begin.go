package reshard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Reasons of a refusal by [Begin] and [Cancel].
var (
	ErrSame     = errors.New("nothing to do")               // the queue has that number of shards
	ErrUnderWay = errors.New("it is being resharded")       // another reshard is under way
	ErrBusy     = errors.New("it cannot be resharded now")  // a deletion or a move is under way
	ErrFlipped  = errors.New("it cannot be undone anymore") // its jobs go to the new shards
	ErrNone     = errors.New("it is not being resharded")
	ErrValue    = errors.New("the value is not allowed")
)

// errSameUnderWay means that a reshard to the same number is under way.
var errSameUnderWay = fmt.Errorf("%w to that number", ErrUnderWay)

// Defaults and bounds of a [Request].
const (
	DefaultPatience = 30 * time.Second
	DefaultMaxPause = time.Minute
	MaxPatience     = 24 * time.Hour
)

// The actions in the list of changes.
const (
	ActionBegin  = "reshard"
	ActionCancel = "cancel reshard"
	ActionDone   = "reshard done"
)

// Request asks for another number of shards.
type Request struct {
	Queue  string
	Shards int
	// Patience is how long the handlers of the queue may take to end their calls. If it is over, nothing is changed. 0 means
	// DefaultPatience.
	Patience time.Duration
	// CancelCalls ends the calls of the queue. Their jobs are handled again, which does not count as a retry.
	CancelCalls bool
	By          changes.Who
}

// Check returns an ErrValue if a value is out of bounds.
func (r Request) Check() error {
	if r.Patience < 0 || r.Patience > MaxPatience {
		return fmt.Errorf("%w: %s of patience; it must be more than 0, and at most %s", ErrValue, r.Patience, MaxPatience)
	}
	return r.CheckShards()
}

// CheckShards returns an ErrValue if the number of shards is out of bounds.
func (r Request) CheckShards() error {
	if r.Shards < 1 || r.Shards > lowkiq.MaxShards {
		return fmt.Errorf("%w: %d shards; the number must be between 1 and %d", ErrValue, r.Shards, lowkiq.MaxShards)
	}
	return nil
}

// Start begins a reshard unless dryRun is set, after it has estimated its cost. It refuses a reshard whose handlers would
// pause for longer than maxPause, and then returns the estimate as well. If a reshard to the same number is under way,
// nothing is done, and the estimate is nil.
func Start(ctx context.Context, c *protocol.Client, r Request, maxPause time.Duration, dryRun bool) (cost *Estimate, begun bool, err error) {
	e, err := Measure(ctx, c, r)
	if errors.Is(err, errSameUnderWay) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if err := e.Check(r.Queue, maxPause); err != nil || dryRun {
		return &e, false, err
	}
	begun, err = Begin(ctx, c, r)
	return &e, begun, err
}

// Begin begins a reshard. A driver does the rest. If a reshard to the same number is under way, Begin changes nothing and
// returns false. The error wraps ErrValue, ErrSame, ErrUnderWay, ErrBusy or lowkiq.ErrUnknownQueue if the request is
// refused. Then nothing has changed.
func Begin(ctx context.Context, c *protocol.Client, r Request) (begun bool, err error) {
	if r.Patience == 0 {
		r.Patience = DefaultPatience
	}
	if err := r.Check(); err != nil {
		return false, err
	}
	was, err := changeEntry(ctx, c.Registry(), r.Queue, func(entry *protocol.RegistryEntry) error {
		begun = false
		same, err := r.checkEntry(*entry)
		if err != nil || same {
			return err
		}
		if err := checkFormer(ctx, c, r.Queue, *entry); err != nil {
			return err
		}
		if err := checkSources(ctx, c, r.Queue, *entry); err != nil {
			return err
		}
		now, err := c.Time(ctx)
		if err != nil {
			return err
		}
		begun = true
		entry.Reshard = &protocol.Reshard{
			Shards: r.Shards, Layout: entry.HighestLayout() + 1, By: r.By.String(), At: now.UnixMilli(), Patience: r.Patience.Milliseconds(), CancelCalls: r.CancelCalls,
		}
		if !slices.Contains(entry.Needs, protocol.FeatureReshard) {
			entry.Needs = append(slices.Clone(entry.Needs), protocol.FeatureReshard)
		}
		return nil
	})
	if err != nil || !begun {
		return false, err
	}
	return true, addLine(ctx, c, changes.Line{Who: r.By, Action: ActionBegin, Queue: r.Queue, Old: shardsJSON(was.Shards), New: shardsJSON(r.Shards)})
}

// checkEntry returns an error if the entry refuses the request. same means that the reshard is under way.
func (r Request) checkEntry(entry protocol.RegistryEntry) (same bool, err error) {
	if err := checkThere(r.Queue, entry); err != nil {
		return false, err
	}
	under := entry.Shards // the number that a reshard under way ends with
	if entry.Reshard != nil {
		under = entry.Reshard.Shards
	}
	switch {
	case entry.Reshard == nil && !entry.Copying() && under == r.Shards:
		return false, fmt.Errorf("queue %q: %w: it has %s already", r.Queue, ErrSame, countShards(r.Shards))
	case entry.Reshard == nil && !entry.Copying():
		return false, nil
	case under == r.Shards:
		return true, nil
	}
	undo := fmt.Sprintf("wait for its end, or take it back: lowkiq-node queues reshard %s --cancel", r.Queue)
	if entry.Copying() {
		undo = "wait for its end"
	}
	return false, fmt.Errorf("queue %q: %w to %s; %s", r.Queue, ErrUnderWay, countShards(under), undo)
}

// checkThere returns an error if a queue cannot be resharded, because it is deleted or stored in a later form.
func checkThere(name string, entry protocol.RegistryEntry) error {
	switch {
	case entry.Removed:
		return fmt.Errorf("%w %q: it was deleted", lowkiq.ErrUnknownQueue, name)
	case entry.Removing != "":
		return fmt.Errorf("queue %q: %w: it is being deleted, or a deletion was broken off; repeat lowkiq-node queues delete %[1]s", name, ErrBusy)
	}
	return entry.Readable(name)
}

// checkFormer refuses a reshard that would forget the oldest former layout while a delivery that it has taken may come again.
func checkFormer(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) error {
	if len(entry.Was) < protocol.MaxFormer {
		return nil
	}
	now, err := c.Time(ctx)
	if err != nil {
		return err
	}
	if until := time.UnixMilli(entry.Was[protocol.MaxFormer-1].At).Add(protocol.SourceAge); now.Before(until) {
		return fmt.Errorf("queue %q: %w: it was resharded %d times within %d days; the next reshard may begin on %s",
			name, ErrBusy, protocol.MaxFormer, int(protocol.SourceAge.Hours())/24, until.UTC().Format(time.DateTime+" UTC"))
	}
	return nil
}

// checkSources refuses a queue that jobs of another system are moving into, or out of. Its shards know which of these jobs
// they have, and the shards of another layout do not. It reads the sources page by page.
func checkSources(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) error {
	type page struct {
		shard  *protocol.Shard
		cursor string
	}
	var pages []page
	for _, s := range c.Registry().Unlisted(name, entry).All() {
		pages = append(pages, page{s, "0"})
	}
	for len(pages) > 0 {
		part := pages[:min(shardsPerRead, len(pages))]
		pages = pages[len(part):]
		var cmds []redisdb.Cmd
		for _, p := range part {
			from := p.shard.Keys().From
			cmds = append(cmds, redisdb.Cmd{"HLEN", from}, redisdb.Cmd{"HEXISTS", from, "export"}, redisdb.Cmd{"HSCAN", from, p.cursor, "MATCH", "import/*", "COUNT", 1000})
		}
		replies, err := c.DB().Pipeline(ctx, "read the sources of "+name, cmds...)
		if err != nil {
			return err
		}
		for i, p := range part {
			r := replies[3*i : 3*i+3]
			fields, next := redisdb.Scanned(r[2])
			switch source := openSource(fields); {
			case redisdb.Int(r[0]) > maxSources:
				return fmt.Errorf("queue %q: %w: %w", name, ErrBusy, &busyError{p.shard, whySources, nil})
			case redisdb.Int(r[1]) > 0:
				return fmt.Errorf("queue %q: %w: its jobs are moving to another system; end that with lowkiq-migrate first", name, ErrBusy)
			case source != "":
				return fmt.Errorf("queue %q: %w: jobs of %s are moving in; end that with lowkiq-migrate first", name, ErrBusy, source)
			case next != "0":
				pages = append(pages, page{p.shard, next})
			}
		}
	}
	return nil
}

// openSource returns the name of an import that has not ended, "" if there is none. fields has names and numbers of imports.
func openSource(fields []string) string {
	for i := 0; i+1 < len(fields); i += 2 {
		if field := fields[i]; !strings.Contains(field, "\x00") && !strings.HasPrefix(fields[i+1], "x") {
			return strings.TrimPrefix(field, "import/")
		}
	}
	return ""
}

// Cancel takes a reshard back before its flip, and makes the queue as it was. The error wraps ErrNone, ErrFlipped or
// lowkiq.ErrUnknownQueue.
func Cancel(ctx context.Context, c *protocol.Client, name string, by changes.Who, why string) error {
	return cancelAttempt(ctx, c, name, 0, by, why)
}

// cancelAttempt is Cancel for the attempt with this number, 0 for any. If it is over, the error is ErrNone.
func cancelAttempt(ctx context.Context, c *protocol.Client, name string, number int, by changes.Who, why string) error {
	g := c.Registry()
	var gone protocol.Reshard
	was, err := changeEntry(ctx, g, name, func(entry *protocol.RegistryEntry) error {
		switch err := checkThere(name, *entry); {
		case err != nil:
			return err
		case entry.Copying():
			return fmt.Errorf("queue %q: %w, because its jobs move already; when all have moved, reshard it back to %s", name, ErrFlipped, countShards(entry.Was[0].Shards))
		case entry.Reshard == nil || number != 0 && entry.Reshard.Layout != number:
			return fmt.Errorf("queue %q: %w", name, ErrNone)
		}
		if err := forgetShards(ctx, g.InTried(name, *entry)); err != nil { // the entry is about to name a later attempt
			return err
		}
		gone = *entry.Reshard
		entry.Tried, entry.TriedShards, entry.Reshard = gone.Layout, gone.Shards, nil
		return nil
	})
	if err != nil {
		return err
	}
	line := changes.Line{Who: by, Action: ActionCancel, Queue: name, Old: shardsJSON(gone.Shards), New: shardsJSON(was.Shards), Why: why}
	return errors.Join(addLine(ctx, c, line), thawShards(ctx, g.Unlisted(name, was), gone.Layout), forgetShards(ctx, g.InLayout(name, was, gone.Shards, gone.Layout)))
}

// changeEntry replaces the entry of a queue by the changed entry, and returns the entry before. It tries again if another client
// changes the entry meanwhile. It writes nothing if edit leaves the entry as it is.
func changeEntry(ctx context.Context, g *protocol.Registry, name string, edit func(*protocol.RegistryEntry) error) (was protocol.RegistryEntry, err error) {
	if err := protocol.CheckName("queue", name); err != nil {
		return was, fmt.Errorf("%w: %w", lowkiq.ErrUnknownQueue, err)
	}
	for {
		text, entry, err := g.Stored(ctx, name)
		if err != nil {
			return was, err
		}
		was = entry
		if err := edit(&entry); err != nil {
			return was, err
		}
		if sameEntry(was, entry) {
			return was, nil
		}
		fresh, swapped, failed := g.Swap(ctx, name, text, entry)
		if swapped {
			return was, nil
		}
		// If Redis has the new text, this call has written it, and the answer was lost.
		now, _, err := g.Stored(ctx, name)
		if err == nil && now == fresh {
			return was, nil
		}
		if err = cmp.Or(failed, err); err != nil {
			return was, err
		}
	}
}

// sameEntry reports whether a change has left the parts of an entry that reshards change.
func sameEntry(x, y protocol.RegistryEntry) bool {
	return x.Reshard == y.Reshard && x.Layout == y.Layout && x.Tried == y.Tried && x.Copying() == y.Copying()
}

// addLine writes a line into the list of changes.
func addLine(ctx context.Context, c *protocol.Client, line changes.Line) error {
	return changes.In(c.DB()).Add(ctx, line)
}

func shardsJSON(n int) json.RawMessage { return fmt.Appendf(nil, `{"shards":%d}`, n) }

// countShards returns a number of shards for people.
func countShards(n int) string {
	if n == 1 {
		return "1 shard"
	}
	return fmt.Sprintf("%d shards", n)
}
