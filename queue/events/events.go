// Package events answers one question: what happens in a cluster while somebody listens?
//
// A listener says every few seconds that it listens, to one queue or to all, by a key that expires. Nodes look at these
// keys with every second renewal of their leases; a node to whose queues nobody listens builds and sends nothing. One that is heard
// publishes how handler calls end, a message of at most 64 KiB each tenth of a second and listened-to queue. What people
// and the cluster change is read from its stream (package changes) by the listener itself.
//
// Events come at most once: what a listener was too slow for, what did not fit, and what was said while its connection was
// broken is missed, and it is told so. Who must not miss a run reads the journal from a cursor.
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

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Kind says what an event tells of.
type Kind string

// The kinds.
const (
	Ran       Kind = "run"       // a handler call for one id has ended
	Recovered Kind = "recovered" // jobs that were in flight when their worker died, or left, are queued again
	Changed   Kind = "change"    // a person, a program or the cluster has changed something
	Missed    Kind = "missed"    // events did not reach the listener
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Ran, Recovered, Changed, Missed} }

// Event is one thing that has happened.
type Event struct {
	Kind     Kind
	Queue    string // "" of a change of no queue, and of what was missed
	Shard    int    // of runs and recoveries
	Instance string // of the node that tells of it

	Run       *journal.Run  // of a run, as its handler ended it; the journal has it once Redis has taken that
	Recovered *Recovery     // of a recovery
	Change    *changes.Line // of a change
	Missed    int           // how many events were; 0: nobody knows

	form *form // of one that several read by a hub
}

// form is an event in the words of a program, made once for all who read it.
type form struct {
	once sync.Once
	text string
}

// Text is the event in the words of write. Of an event of a hub they are made once: whoever reads it by that hub has to ask for the same.
func (e *Event) Text(write func(*Event) string) string {
	if e.form == nil {
		return write(e)
	}
	e.form.once.Do(func() { e.form.text = write(e) })
	return e.form.text
}

// Recovery is what the owner of a shard found of its last one.
type Recovery struct {
	At   time.Time
	Jobs int // that were in flight, and will be handled again
	// Crashes are payloads that went to the morgue, as their workers died of them again and again.
	Crashes int
	From    string // the instance that had them; "" if nobody knows
}

// Filter says which events are wanted. The zero value of a field asks for all.
type Filter struct {
	Queue    string
	ID       string            // runs of this id, and changes that name it
	Verdicts []journal.Verdict // runs that ended so, and nothing else
}

// Takes reports whether the filter lets an event through. One that says what was missed always goes through.
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

// errMessage is a message that cannot be read.
var errMessage = errors.New("unreadable message of events")

// A message is a line "<missed> <instance>", and then for each shard that has something to say one of
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

// parse reads a message. What can be read before something that cannot is returned with the error.
func parse(text string) (all []Event, err error) {
	bad := func(part string) error { return fmt.Errorf("%w: %.60q", errMessage, part) }
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
					runs[i].Ended = runs[i].Popped // of what no handler was called for
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

// Backlog holds events for a reader who may be slow: what does not fit is missed, and counted.
type Backlog struct {
	events chan Event
	missed atomic.Int64
}

// backlog is how many events wait for a reader.
const backlog = 1024

// NewBacklog makes an empty one.
func NewBacklog() *Backlog { return &Backlog{events: make(chan Event, backlog)} }

// C are the events that wait.
func (b *Backlog) C() <-chan Event { return b.events }

// Add adds an event; it never waits. One goroutine at a time may call it.
func (b *Backlog) Add(e Event) {
	if n := b.missed.Load(); n > 0 && !b.put(Event{Kind: Missed, Missed: int(n)}) {
		b.missed.Add(1)
		return
	} else if n > 0 {
		b.missed.Add(-n)
	}
	if !b.put(e) {
		b.missed.Add(1)
	}
}

func (b *Backlog) put(e Event) bool {
	select {
	case b.events <- e:
		return true
	default:
		return false
	}
}
