package demo

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// endpoint takes pushes, and fails those that a test wants to fail.
type endpoint struct {
	pushes int
	jobs   []lowkiq.Push
	fail   func(push int, w http.ResponseWriter) bool
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.pushes++
	scanner := wire.NewScanner(r.Body, 1<<20)
	var batch []lowkiq.Push
	for {
		_, job, err := scanner.Next()
		if err != nil {
			break
		}
		batch = append(batch, job)
	}
	if e.fail(e.pushes, w) {
		return
	}
	e.jobs = append(e.jobs, batch...)
	json.NewEncoder(w).Encode(web.Pushed{Results: slices.Repeat([]web.PushResult{{OK: true}}, len(batch))})
}

func feed(t *testing.T, e *endpoint) (*feeder, error) {
	t.Helper()
	srv := httptest.NewServer(e)
	defer srv.Close()
	var handled atomic.Int64
	handled.Store(Payloads) // the window is always open
	f := &feeder{apis: &apis{}, handled: &handled}
	f.apis.add("n1", srv.URL)
	f.allow(Payloads)
	return f, f.pushAll(t.Context())
}

// A push without an answer is repeated, and the judge is told of both.
func TestFeederRepeats(t *testing.T) {
	t.Parallel()
	e := &endpoint{fail: func(push int, w http.ResponseWriter) bool {
		switch push {
		case 2:
			panic(http.ErrAbortHandler) // the connection breaks
		case 4:
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}}
	f, err := feed(t, e)
	if err != nil {
		t.Fatal(err)
	}
	pushed, optional := 0, 0
	for p := range f.listPushed() {
		if pushed++; p.Optional {
			optional++
		}
	}
	if len(e.jobs) != Payloads || f.repeated != 2 || optional != 2*batchEvents || pushed != Payloads+optional {
		t.Errorf("got %d jobs, %d repeats, %d of %d pushed optional; want %d, 2, %d of %d",
			len(e.jobs), f.repeated, optional, pushed, Payloads, 2*batchEvents, Payloads+2*batchEvents)
	}
}

// What a node refuses is not tried for ever.
func TestFeederGivesUp(t *testing.T) {
	t.Parallel()
	e := &endpoint{fail: func(_ int, w http.ResponseWriter) bool { w.WriteHeader(http.StatusNotFound); return true }}
	if _, err := feed(t, e); err == nil || e.pushes != 1 {
		t.Errorf("got %v after %d pushes, want an error after 1", err, e.pushes)
	}
}

// The demo's verdict can be bad: an event that was pushed and never handled.
func TestVerdictObjects(t *testing.T) {
	t.Parallel()
	f, err := feed(t, &endpoint{fail: func(int, http.ResponseWriter) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "history")
	w, err := judge.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	handler := judge.Wrap(w, lowkiq.HandlerFunc(pretendWork))
	first := f.attempts[0].events[0]
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: queueName}, Fence: 1, Flight: 1, Jobs: []lowkiq.Job{
		{ID: first.ID, RetryCount: -1, Payloads: []lowkiq.Payload{{Score: first.Score, Data: first.Payload}}}}}
	if err := handler.Handle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	v, err := judgeHistory(f, path)
	if err != nil {
		t.Fatal(err)
	}
	if words := (Outcome{Verdict: v}).Words(); v.OK() || v.Lost != Payloads-1 || !strings.Contains(words, "Verdict: BAD") {
		t.Errorf("got ok: %t, %d lost and %s; want %d lost and a bad verdict", v.OK(), v.Lost, words, Payloads-1)
	}
}
