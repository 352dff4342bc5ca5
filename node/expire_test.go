package node

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestExpire checks that expired payloads end as the rule says, that callers learn it, and that the rest of the job runs. The
// expiry comes from the configuration, from a setting and from a header.
func TestExpire(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	ran := make(chan string, 10)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{BatchSize: 10, Journal: rules.Journal{Runs: rules.JournalAll}, Expire: rules.Expire{To: rules.ExpireDrop}}},
		func(_ context.Context, b *lowkiq.Batch) error {
			for _, job := range b.Jobs {
				text := job.ID
				for _, payload := range job.Payloads {
					text += " " + string(payload.Data)
				}
				ran <- text
			}
			return nil
		}).serving()
	late := map[string]string{"expires": "2001-09-09T01:46:40Z"}
	call := func(push lowkiq.Push) lowkiq.Reply {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		reply, err := p.client.Call(ctx, "orders", push)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if got := call(lowkiq.Push{ID: "a", Payload: []byte("1"), Header: late}); got.State != lowkiq.ReplyExpired {
		t.Errorf("dropped: its caller got %+v, want expired", got)
	}
	p.push(lowkiq.Push{ID: "b", Payload: []byte("1")}, lowkiq.Push{ID: "b", Payload: []byte("2"), Header: late}, lowkiq.Push{ID: "b", Payload: []byte("3")})
	if got := receive(t, "the rest", ran); got != "b 1 3" {
		t.Errorf("got %s, want b 1 3", got)
	}
	p.set(rules.Change{}, "expire", `{"after":"1h","to":"morgue"}`)
	run.renew()
	await(t, "the rule is in force", func() bool { return run.queues.handled["orders"].rulesNow().Expire.After == time.Hour })
	score := float64(time.Now().Add(-2 * time.Hour).Unix())
	reply := make(chan lowkiq.Reply, 1)
	go func() {
		reply <- call(lowkiq.Push{ID: "c", Payload: []byte("1"), Score: &score, PerformAt: time.Now().Add(-2 * time.Hour)})
	}()
	if got := receive(t, "the reply", reply); got.State != lowkiq.ReplyBuried || got.Error == "" {
		t.Errorf("to the morgue: its caller got %+v, want that it was buried", got)
	}
	await(t, "it is in the morgue", func() bool { return p.stats().Morgue == 1 })
	page, err := browse.Of(p.Queue).Runs(t.Context(), browse.RunQuery{ID: "a", Limit: 10})
	if err != nil || len(page.List) != 1 || page.List[0].Verdict != browse.RunExpired || !page.List[0].Began.IsZero() {
		t.Errorf("history: got %+v, %v, want one run that expired and never began", page.List, err)
	}
	await(t, "three payloads are counted", func() bool { return testutil.ToFloat64(run.queues.handled["orders"].metrics.Expired) == 3 })
	if got := p.stats(); got.Failed != 0 {
		t.Errorf("%d failed, want none", got.Failed)
	}
	run.stop()
}

// TestExpireOfWhatIsPutOff checks that a payload that its handler postpones again and again waits since its push. The lag
// includes it, postponements are counted, and no handler gets it after its expiry.
func TestExpireOfWhatIsPutOff(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	const of = 5 * time.Second
	last := make(chan time.Duration, 1000)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{Expire: rules.Expire{After: of, To: rules.ExpireDrop}}},
		func(_ context.Context, b *lowkiq.Batch) error {
			last <- time.Since(time.UnixMicro(int64(b.Jobs[0].Payloads[0].Score * 1e6))) // the time of the push
			return lowkiq.Postpone{After: 20 * time.Millisecond, Reason: "503"}
		}).serving()
	p.push(lowkiq.Push{ID: "a", Payload: []byte("1")}, lowkiq.Push{ID: "b", Payload: []byte("1")})
	all := []*running{run}
	await(t, "it is put off", func() bool { return total(t, all, "lowkiq_jobs_postponed_total", "handler") > 4 })
	await(t, "the lag counts from its push", func() bool { return total(t, all, "lowkiq_queue_lag_seconds") > 0.1 }) // it is less while both are in flight
	await(t, "it expires", func() bool { return testutil.ToFloat64(run.queues.handled["orders"].metrics.Expired) == 2 })
	for range len(last) {
		if at := <-last; at > of+10*time.Second { // a machine may stand still right before the call
			t.Errorf("a handler got it %s after its push, want none after %s", at, of)
		}
	}
}

// TestBusyEndpoint checks that an endpoint that answers 503 without a time costs no retries, however long that lasts. The lag
// counts from the pushes, postponements are counted by their cause, and all jobs run once the endpoint answers.
func TestBusyEndpoint(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var works atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !works.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	h, err := handler.NewHTTP(handler.HTTPConfig{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	run := startHandler(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{MaxRetryCount: -1}}, h).serving()
	p.ids("a", 5)
	all := []*running{run}
	await(t, "the lag counts from the pushes", func() bool { return total(t, all, "lowkiq_queue_lag_seconds") > 2.5 })
	await(t, "two postponements of each job are counted", func() bool { return total(t, all, "lowkiq_jobs_postponed_total", "handler") >= 10 })
	if got := p.stats(); got.Failed > 0 || got.Morgue > 0 {
		t.Errorf("%d failed, %d are in the morgue, want none", got.Failed, got.Morgue)
	}
	works.Store(true)
	await(t, "all is done", func() bool { return p.stats().Processed == 5 })
	run.stop()
}
