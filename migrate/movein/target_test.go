package movein

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

var errCut = errors.New("the new Redis is gone")

// target is a new queue as [Mover.Import] wants it: what waits is merged, a number of a source is taken in once.
type target struct {
	forgetful bool  // it knows no numbers
	refuses   error // all entries
	failAt    int   // the call that fails, from 1; 0 = none
	after     bool  // when it has done its work: the answer is lost

	calls  int
	taken  map[string]int64
	jobs   map[string]*Entry // waiting, and "morgue " and the id
	order  []string          // ids as they came
	worked bool              // a worker handles what comes, at once
	runs   []string          // payloads that it handled
}

func (n *target) bring(_ context.Context, source string, entries []Entry) ([]Result, error) {
	n.calls++
	results := make([]Result, len(entries))
	if n.calls == n.failAt && !n.after {
		return fails(results)
	}
	if n.taken == nil {
		n.taken, n.jobs = map[string]int64{}, map[string]*Entry{}
	}
	for i, e := range entries {
		switch {
		case e.Err != nil:
			results[i].Refused = e.Err
		case n.refuses != nil:
			results[i].Refused = n.refuses
		case n.forgetful || e.Number > n.taken[source]:
			n.taken[source] = e.Number
			n.merge(e)
		}
	}
	if n.calls == n.failAt {
		return fails(results)
	}
	return results, n.refuses
}

func fails(results []Result) ([]Result, error) {
	for i := range results {
		results[i].Err = errCut
	}
	return results, errCut
}

func (n *target) merge(e Entry) {
	name := e.ID
	if e.Morgue {
		name = "morgue " + e.ID
	}
	if n.worked && !e.Morgue {
		for _, p := range e.Payloads {
			n.runs = append(n.runs, e.ID+" "+string(p.Data))
		}
		return
	}
	if have := n.jobs[name]; have != nil {
		for _, p := range have.Payloads {
			i := slices.IndexFunc(e.Payloads, func(q Payload) bool { return string(q.Data) == string(p.Data) })
			if i < 0 {
				e.Payloads = append(e.Payloads, p)
			} else {
				e.Payloads[i].Score = min(e.Payloads[i].Score, p.Score)
			}
		}
	} else {
		n.order = append(n.order, name)
	}
	slices.SortFunc(e.Payloads, func(a, b Payload) int { return cmp.Or(cmp.Compare(a.Score, b.Score), bytes.Compare(a.Data, b.Data)) })
	n.jobs[name] = &e
}

// shows is all that the target has, a line each.
func (n *target) shows() string {
	var lines []string
	for name, e := range n.jobs {
		line := fmt.Sprintf("%q retries %d due %d buried %d error %q:", name, e.RetryCount, e.Due, e.Buried, e.Error)
		for _, p := range e.Payloads {
			line += fmt.Sprintf(" %v %q", p.Score, p.Data)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// old is a Redis with a state.
type old struct {
	server *redistest.Server
	rdb    *redis.Client
}

func start(t testing.TB) *old {
	s := redistest.StartOld(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return &old{s, rdb}
}

func (o *old) load(t testing.TB, s *rubystates.State) {
	t.Helper()
	commands, err := s.Commands()
	if err != nil {
		t.Fatal(err)
	}
	pipe := o.rdb.Pipeline()
	pipe.FlushAll(t.Context())
	for _, c := range commands {
		pipe.Do(t.Context(), c...)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
}

// mover is one process that moves.
func mover(t testing.TB, url string, s *rubystates.State, n *target, lefts *[]Left) *Mover {
	t.Helper()
	q, err := rubyqueue.Open(rubyqueue.Config{URL: url, Timeout: 20 * time.Second, Name: s.QueueName, Shards: s.Shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return &Mover{Old: q, Shards: s.Shards, Form: Bytes, To: "q", Limits: DefaultLimits, Import: n.bring, OnLeft: func(l Left) {
		if lefts != nil {
			*lefts = append(*lefts, l)
		}
	}}
}

func states(t testing.TB, names ...string) (found []rubystates.State) {
	t.Helper()
	for _, s := range rubystates.LoadAll(t) {
		if slices.Contains(names, s.Name) {
			found = append(found, s)
		}
	}
	if len(found) != len(names) {
		t.Fatalf("found %d of the states %v", len(found), names)
	}
	return found
}
