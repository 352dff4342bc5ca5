package judge

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const queue = "history"

// run is a history under construction: what happened, before it is written down.
type run struct {
	pushed []Pushed
	calls  []*did
	deaths []died
}

// did is one handler call with one job. No end = the process died in it.
type did struct {
	process    string
	shard      int
	fence      int64
	id         string
	start, end int64
	err        error
	payloads   []lowkiq.Payload
}

type died struct {
	process        string
	killed, reaped int64
}

// data is another payload for each score: the judge takes equal ones for one.
func data(id string, score float64) []byte { return fmt.Append(nil, id, " ", score) }

// loads are payloads of id with these scores.
func loads(id string, scores ...float64) []lowkiq.Payload {
	var p []lowkiq.Payload
	for _, s := range scores {
		p = append(p, lowkiq.Payload{Score: s, Data: data(id, s)})
	}
	return p
}

func pushes(id string, scores ...float64) []Pushed {
	var p []Pushed
	for _, s := range scores {
		p = append(p, Pushed{Queue: queue, ID: id, Score: s, Digest: Digest(data(id, s))})
	}
	return p
}

// fataler is a test, a benchmark or a property.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// text is the run as its processes would write it.
func (r *run) text(t fataler) []byte {
	var out bytes.Buffer
	var now time.Duration
	noClose := func() error { return nil }
	for n, c := range r.calls {
		w := newWriter(&out, noClose, c.process, func() time.Duration { return now })
		now = time.Duration(c.start)
		done, err := w.Start(&lowkiq.Batch{
			Shard: lowkiq.Shard{Queue: queue, Index: c.shard}, Fence: c.fence, Flight: int64(n),
			Jobs: []lowkiq.Job{{ID: c.id, Payloads: c.payloads}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if now = time.Duration(c.end); c.end == 0 {
			continue
		}
		if err := done(c.err); err != nil {
			t.Fatal(err)
		}
	}
	w := newWriter(&out, noClose, "driver", nil)
	for _, d := range r.deaths {
		if err := w.Death(d.process, time.Duration(d.killed), time.Duration(d.reaped)); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func (r *run) check(t fataler, cfg Config) Verdict {
	t.Helper()
	v, err := CheckReader(cfg, slices.Values(r.pushed), bytes.NewReader(r.text(t)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ok is a call that succeeded, by process p with fence 1 on shard 0.
func ok(start, end int64, id string, scores ...float64) *did {
	return &did{process: "p", fence: 1, id: id, start: start, end: end, payloads: loads(id, scores...)}
}

func (c *did) by(process string, fence int64) *did { c.process, c.fence = process, fence; return c }

func (c *did) fails() *did { c.err = errors.New("no luck"); return c }
