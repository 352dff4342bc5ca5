// Package events tells listeners what happens in a cluster.
//
// A listener announces every few seconds that it listens to a queue or to all queues, by a key that
// expires. Nodes read these keys with every second renewal of their leases. A node to whose queues
// nobody listens builds and sends nothing. Otherwise it publishes how handler calls end, in a
// message of at most 64 KiB per tenth of a second and queue. The listener itself reads the changes
// that people and the cluster make from their stream (package changes).
//
// Events arrive at most once. The listener misses events that it was too slow for, that did not fit
// into a message, or that happened while its connection was broken, and is told so. A program that
// must not miss a run reads the journal from a cursor.
package events

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Kind is the kind of an event.
type Kind string

// The kinds.
const (
	Ran       Kind = "run"       // a handler call for an id has ended
	Recovered Kind = "recovered" // jobs that were in flight when their worker died, or left, are queued again
	Changed   Kind = "change"    // a person, a program or the cluster has changed something
	Missed    Kind = "missed"    // events did not reach the listener
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Ran, Recovered, Changed, Missed} }

// Event is something that has happened.
type Event struct {
	Kind     Kind
	Queue    string // "" for a change of no queue and for missed events
	Shard    int    // for runs and recoveries
	Instance string // instance of the node that reports the event

	Run       *journal.Run  // a run as its handler ended it; the journal has it once Redis has recorded the end
	Recovered *Recovery     // a recovery
	Change    *changes.Line // a change
	Missed    int           // number of missed events, 0 if unknown

	rendering *rendering // of an event that several readers get from a hub
}

// rendering is the text of an event, made once for all its readers.
type rendering struct {
	once sync.Once
	text string
}

// Text returns the event as write writes it. For an event of a hub, write is called once. So all
// readers of that hub must pass the same function.
func (e *Event) Text(write func(*Event) string) string {
	if e.rendering == nil {
		return write(e)
	}
	e.rendering.once.Do(func() { e.rendering.text = write(e) })
	return e.rendering.text
}

// Recovery describes what the new owner of a shard has recovered.
type Recovery struct {
	At   time.Time
	Jobs int // jobs that were in flight and will be handled again
	// Crashes is the number of payloads sent to the morgue because they killed their workers again
	// and again.
	Crashes int
	From    string // the instance that had the jobs in flight, "" if unknown
}

// Filter selects events. The zero value of a field selects all.
type Filter struct {
	Queue    string
	ID       string            // runs of this id, and changes that name it
	Verdicts []journal.Verdict // only runs with these verdicts
}

// Takes reports whether the filter passes an event. It always passes reports of missed events.
func (f *Filter) Takes(e *Event) bool {
	if e.Kind == Missed {
		return true
	}
	if f.Queue != "" && e.Queue != f.Queue {
		return false
	}
	switch {
	case e.Run != nil:
		return (f.ID == "" || e.Run.ID == f.ID) && (len(f.Verdicts) == 0 || slices.Contains(f.Verdicts, e.Run.Verdict))
	case len(f.Verdicts) > 0:
		return false
	case e.Change != nil:
		return f.ID == "" || slices.Contains(e.Change.IDs, f.ID)
	}
	return f.ID == ""
}

// errUnreadable is the error of a message that cannot be parsed.
var errUnreadable = errors.New("unreadable message of events")

// A message is a line "<missed> <instance>", and then for each shard with events one of these lines:
//
//	run <queue> <shard> <bytes>\n<lines of package journal>
//	recovered <queue> <shard> <µs> <jobs> <crashes> <instance>\n
func appendHead(b []byte, missed int, instance string) []byte {
	return fmt.Appendf(b, "%d %s\n", missed, instance)
}

func appendRuns(b []byte, queue string, shard int, lines []byte) []byte {
	b = append(b, "run "...)
	b = append(append(b, queue...), ' ')
	b = append(strconv.AppendInt(b, int64(shard), 10), ' ')
	b = append(strconv.AppendInt(b, int64(len(lines)), 10), '\n')
	return append(b, lines...)
}

func appendRecovery(b []byte, queue string, shard int, r *Recovery) []byte {
	return fmt.Appendf(b, "recovered %s %d %d %d %d %s\n", queue, shard, r.At.UnixMicro(), r.Jobs, r.Crashes, r.From)
}

// parseMessage parses a message. With an error it returns the events before the unreadable part.
func parseMessage(text string) (all []Event, err error) {
	bad := func(part string) error { return fmt.Errorf("%w: %.60q", errUnreadable, part) }
	head, rest, ok := strings.Cut(text, "\n")
	count, instance, two := strings.Cut(head, " ")
	missed, err := strconv.Atoi(count)
	if !ok || !two || err != nil || missed < 0 {
		return nil, bad(text)
	}
	for rest != "" {
		head, after, ok := strings.Cut(rest, "\n")
		words := strings.Split(head, " ")
		if !ok || len(words) < 4 {
			return all, bad(rest)
		}
		e := Event{Kind: Kind(words[0]), Queue: words[1], Instance: instance}
		if e.Shard, err = strconv.Atoi(words[2]); err != nil {
			return all, bad(rest)
		}
		switch {
		case e.Kind == Ran && len(words) == 4:
			n, err := strconv.Atoi(words[3])
			if err != nil || n < 0 || n > len(after) {
				return all, bad(rest)
			}
			runs, err := journal.Parse(after[:n], instance, time.Time{})
			for i := range runs {
				of := e
				runs[i].Shard = e.Shard
				if runs[i].Ended.IsZero() {
					runs[i].Ended = runs[i].Popped // no handler was called
				}
				of.Run = &runs[i]
				all = append(all, of)
			}
			if err != nil {
				return all, err
			}
			after = after[n:]
		case e.Kind == Recovered && len(words) == 7:
			var n [3]int64
			for i := range n {
				if n[i], err = strconv.ParseInt(words[3+i], 10, 64); err != nil {
					return all, bad(rest)
				}
			}
			e.Recovered = &Recovery{At: time.UnixMicro(n[0]), Jobs: int(n[1]), Crashes: int(n[2]), From: words[6]}
			all = append(all, e)
		default:
			return all, bad(rest)
		}
		rest = after
	}
	if missed > 0 {
		all = append(all, Event{Kind: Missed, Instance: instance, Missed: missed})
	}
	return all, nil
}

// Backlog holds events for a reader that may be slow. Events that do not fit are missed and
// counted.
type Backlog struct {
	events chan Event
	missed atomic.Int64
}

// backlogSize is how many events wait for a reader.
const backlogSize = 1024

// NewBacklog returns an empty backlog.
func NewBacklog() *Backlog { return &Backlog{events: make(chan Event, backlogSize)} }

// C returns the channel of the waiting events.
func (b *Backlog) C() <-chan Event { return b.events }

// Add adds an event and never waits. Only one goroutine at a time may call it.
func (b *Backlog) Add(e Event) {
	if n := b.missed.Load(); n > 0 && !b.tryPut(Event{Kind: Missed, Missed: int(n)}) {
		b.missed.Add(1)
		return
	} else if n > 0 {
		b.missed.Add(-n)
	}
	if !b.tryPut(e) {
		b.missed.Add(1)
	}
}

func (b *Backlog) tryPut(e Event) bool {
	select {
	case b.events <- e:
		return true
	default:
		return false
	}
}
