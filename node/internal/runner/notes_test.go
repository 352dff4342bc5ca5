package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// noteTaker is a claim that takes notes only.
type noteTaker struct {
	Claim
	mu  sync.Mutex
	got []string // guarded by mu
}

func (c *noteTaker) Note(_ context.Context, n protocol.Note) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, fmt.Sprintf("%d %s %v %s %s", n.Flight, n.ID, n.Progress, n.Log, n.State))
	return nil
}

// The notes about an id in a second are sent as one, states at once, and nothing after the call: what was
// logged last is left for the journal.
func TestNotesAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		claim := &noteTaker{}
		n := notes{r: &Runner{claim: claim, queue: &Queue{Rules: Rules{Rules: rules.Rules{State: -1}}}, process: &Process{IO: t.Context()}}, lane: &lane{ids: []string{"a", "b"}}}
		batch := lowkiq.NewBatch(lowkiq.Shard{}, 1, 7, []lowkiq.Job{{ID: "a"}, {ID: "b"}})
		note := func(id string, note lowkiq.Note) {
			t.Helper()
			if err := batch.Note(t.Context(), id, note); err != nil {
				t.Error(err)
			}
		}
		sent := func(want ...string) {
			t.Helper()
			synctest.Wait()
			claim.mu.Lock()
			defer claim.mu.Unlock()
			if !slices.Equal(claim.got, want) {
				t.Errorf("got %q sent, want %q", claim.got, want)
			}
			claim.got = nil
		}
		batch.NotesTo(&n)
		note("a", lowkiq.Note{Progress: .1})
		note("b", lowkiq.Note{Progress: .2})
		sent("7 a 0.1  ", "7 b 0.2  ")
		for i := range 9 {
			note("a", lowkiq.Note{Progress: .1 + float64(i)/100, Log: fmt.Sprint("line ", i)})
		}
		sent()
		time.Sleep(time.Second)
		sent("7 a 0.18 line 0\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8 ")
		note("a", lowkiq.Note{Log: "on its way"})
		note("a", lowkiq.Note{State: []byte("now")})
		sent("7 a 0 on its way now")
		time.Sleep(2 * time.Second)
		sent()
		note("a", lowkiq.Note{Progress: .9})
		note("a", lowkiq.Note{Progress: 1})
		sent("7 a 0.9  ")
		note("b", lowkiq.Note{Log: "sent"})
		note("b", lowkiq.Note{Log: "the"})
		note("b", lowkiq.Note{Log: "last"})
		sent("7 b 0 sent ")
		batch.EndAnswers()
		if ids, logs := n.endCall(); len(ids) != 2 || len(logs) != 1 || logs["b"] != "the\nlast" {
			t.Errorf("got notes about %v, and %q, want a and b, and what was logged of b last", ids, logs)
		}
		time.Sleep(2 * time.Second)
		sent()
		if err := batch.Note(t.Context(), "a", lowkiq.Note{}); !errors.Is(err, lowkiq.ErrEnded) {
			t.Errorf("after the call: got %v, want ErrEnded", err)
		}
	})
}

func TestNotesThatAreRefused(t *testing.T) {
	t.Parallel()
	n := notes{r: &Runner{claim: &noteTaker{}, queue: &Queue{}}, lane: &lane{ids: []string{"a"}}}
	batch := lowkiq.NewBatch(lowkiq.Shard{}, 1, 7, []lowkiq.Job{{ID: "a"}})
	batch.NotesTo(&n)
	for what, c := range map[string]struct {
		id   string
		note lowkiq.Note
		want error
	}{
		"a stranger":            {"b", lowkiq.Note{Progress: .1}, lowkiq.ErrNote},
		"too much":              {"a", lowkiq.Note{Progress: 1.1}, lowkiq.ErrNote},
		"a long line":           {"a", lowkiq.Note{Log: string(make([]byte, lowkiq.MaxLogBytes+1))}, lowkiq.ErrNote},
		"no text":               {"a", lowkiq.Note{Log: "\xff"}, lowkiq.ErrNote},
		"a long state":          {"a", lowkiq.Note{State: make([]byte, lowkiq.MaxStateBytes+1)}, lowkiq.ErrNote},
		"a state without rules": {"a", lowkiq.Note{State: []byte("s")}, verdict.ErrNoStates},
	} {
		if err := batch.Note(t.Context(), c.id, c.note); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
}

// silent is a claim whose Redis does not answer, whatever the context says.
type silent struct {
	Claim
	asked, answer chan struct{}
}

func (c *silent) Note(context.Context, protocol.Note) error {
	close(c.asked)
	<-c.answer
	return nil
}

// A handler that is told to stop returns from its note, though Redis does not answer (I1).
func TestNoteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	claim := &silent{asked: make(chan struct{}), answer: make(chan struct{})}
	defer close(claim.answer)
	n := notes{r: &Runner{claim: claim, queue: &Queue{}}, lane: &lane{ids: []string{"a"}}}
	batch := lowkiq.NewBatch(lowkiq.Shard{}, 1, 7, []lowkiq.Job{{ID: "a"}})
	batch.NotesTo(&n)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-claim.asked; cancel(lowkiq.ErrLeaseLost) }()
	if err := batch.Note(ctx, "a", lowkiq.Note{Progress: .1}); !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("got %v, want the context's cause", err)
	}
}
