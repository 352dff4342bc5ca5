package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// notebook is what a listener has heard.
type notebook struct {
	mu    sync.Mutex
	lines []string
}

func (n *notebook) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *notebook) has(line string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.lines, line)
}

// listen writes down what a listener hears until the test ends.
func (p *producer) listen(f events.Filter) *notebook {
	var n notebook
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events.Listen(ctx, p.client.DB(), f) {
			switch {
			case e.Run != nil:
				n.add(fmt.Sprint(e.Queue, " ", e.Run.ID, " ", e.Run.Verdict, " ", e.Run.Error, string(e.Run.Result)))
			case e.Recovered != nil:
				n.add(fmt.Sprint("recovered ", e.Recovered.Jobs))
			case e.Change != nil:
				n.add("change " + e.Change.Action)
			default:
				n.add(fmt.Sprint("missed ", e.Missed))
			}
		}
	}()
	p.t.Cleanup(func() { stop(); <-ended })
	return &n
}

// TestEvents checks that a listener gets the runs and changes of its queue. Nothing is published without a listener.
func TestEvents(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Rules: rules.Rules{MaxRetryCount: -1}}, func(_ context.Context, b *lowkiq.Batch) error {
		switch id := b.Jobs[0].ID; {
		case strings.HasPrefix(id, "bad"):
			return fmt.Errorf("no stock for %s\nin detail", id)
		case strings.HasPrefix(id, "done"):
			b.Answer(id).Result([]byte("7"))
		}
		return nil
	}).serving()
	published := func() (n string) {
		for line := range strings.Lines(raw(t, srv.Addr(), "INFO", "commandstats")) {
			if calls, ok := strings.CutPrefix(line, "cmdstat_publish:"); ok {
				return calls
			}
		}
		return ""
	}
	before := published()
	p.ids("quiet", 100)
	p.drained()
	if wakes := published(); run.events.Wanted("orders") || strings.Contains(raw(t, srv.Addr(), "PUBSUB", "CHANNELS", "*:events:*"), "events") {
		t.Errorf("somebody listens: %s, %s before", wakes, before)
	}
	all, failed, other := p.listen(events.Filter{}), p.listen(events.Filter{Queue: "orders", Verdicts: []browse.Verdict{browse.RunExhausted}}), p.listen(events.Filter{Queue: "mails"})
	await(t, "the node knows of its listeners", func() bool { run.renew(); return run.events.Wanted("orders") })
	await(t, "they are heard", func() bool { // a subscription may come after the key
		p.ids("done", 1)
		return all.has("orders done0 done 7")
	})
	await(t, "the other one, too", func() bool {
		p.ids("bad", 1)
		return failed.has("orders bad0 exhausted no stock for bad0") && all.has("orders bad0 exhausted no stock for bad0")
	})
	await(t, "changes are heard", func() bool {
		if err := changes.In(p.client.DB()).Add(t.Context(), changes.Line{Action: "pause", Queue: "orders"}); err != nil {
			t.Fatal(err)
		}
		return all.has("change pause")
	})
	other.mu.Lock()
	defer other.mu.Unlock()
	if len(other.lines) > 0 || failed.has("orders done0 done 7") || failed.has("change pause") {
		t.Errorf("heard %q, and %q; want what was asked for", other.lines, failed.lines)
	}
}

// TestHooks checks that hooks get jobs that are out of retries, buried jobs, and the number of jobs that the last owner of a
// shard has left.
func TestHooks(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.push(lowkiq.Push{ID: "left", Payload: []byte("1")}, lowkiq.Push{ID: "bad", Payload: []byte("1")}, lowkiq.Push{ID: "bad", Payload: []byte("2")})
	// An instance that dies with a job in flight.
	claim, err := p.Queue.Shard(0).Claim(t.Context(), "gone/1", protocol.Fresh, protocol.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := claim.Pop(t.Context(), protocol.PopRequest{IDs: 1, Bytes: 1000}); err != nil || len(got.Jobs) != 1 {
		t.Fatalf("got %+v, %v; want a job", got, err)
	}
	var told notebook
	hook := func(_ context.Context, e *lowkiq.Event) error {
		line := fmt.Sprint(e.Kind, " ", e.Shard, " ", e.Recovered, " ", e.Crashes, " ", e.From)
		for _, job := range e.Jobs {
			line += fmt.Sprint(" ", job.ID, len(job.Payloads), string(job.Payloads[0].Data), " ", job.Err)
		}
		told.add(line)
		return nil
	}
	start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{Rules: rules.Rules{MaxRetryCount: -1}, OnExhausted: hook, OnBuried: hook, OnRecovered: hook}, func(_ context.Context, b *lowkiq.Batch) error {
		if b.Jobs[0].ID == "bad" {
			return lowkiq.Bury{Reason: "no such account"}
		}
		return nil
	}).serving()
	for _, want := range []string{"recovered orders/0 1 0 gone/1", "exhausted orders/0 0 0  bad21 no such account", "buried orders/0 0 0  bad21 no such account"} {
		await(t, want, func() bool { return told.has(want) })
	}
}

// TestCrashesAreCountedByIds checks that the payloads of an id that is buried for its crashes count as one burial.
func TestCrashesAreCountedByIds(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.push(lowkiq.Push{ID: "kills", Payload: []byte("1")}, lowkiq.Push{ID: "kills", Payload: []byte("2")})
	owner := protocol.Owner{}
	for i, name := range []string{"gone/1", "gone/2", "gone/3"} {
		cause := protocol.Seize
		if i == 0 {
			cause = protocol.Fresh
		}
		claim, err := p.Queue.Shard(0).Claim(t.Context(), name, cause, owner)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := claim.Pop(t.Context(), protocol.PopRequest{IDs: 1, Bytes: 1000, MaxCrashes: 2, Slot: true}); err != nil || len(got.Jobs) != 1 {
			t.Fatalf("got %+v, %v; want a job", got, err)
		}
		owner = protocol.Owner{Instance: name, Fence: claim.Fence}
	}
	run := start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{}, nothing).serving()
	await(t, "it is in the morgue", func() bool {
		got, err := p.Queue.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got.Morgue == 2
	})
	await(t, "it is counted", func() bool { got, _ := scrape(t, run, "lowkiq_jobs_buried_total", "orders"); return got > 0 })
	if got, _ := scrape(t, run, "lowkiq_jobs_buried_total", "orders"); got != 1 {
		t.Errorf("got %v burials, want 1: two payloads of one id", got)
	}
}
