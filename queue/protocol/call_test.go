package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// callTests test calls as a client sees them.
var callTests = []testCase{
	{"Call_OfEachEnd", testCallOfEachEnd},
	{"Call_Many", testCallMany},
	{"Call_ContextEnds", testCallContextEnds},
	{"Call_ClientIsClosed", testCallClosed},
	{"Call_PayloadIsGone", testCallGone},
	{"Call_ByMiddlewares", testCallByMiddlewares},
	{"Call_WithinMemory", testCallWithinMemory},
}

// patience is the time after which a test gives up waiting.
const patience = 2 * time.Minute

// serve handles jobs until the test ends or stop is called. A payload says how it ends.
func (r *rig) serve() (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var worker sync.WaitGroup
	worker.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			p, err := r.claim.Pop(ctx, PopRequest{IDs: 100, Bytes: 1 << 20})
			if err == nil {
				err = r.handle(ctx, p)
			}
			if err != nil && !Transient(err) && ctx.Err() == nil {
				r.t.Errorf("worker: %v", err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); worker.Wait() })
	r.t.Cleanup(stop)
	return stop
}

// handle ends each job as its first payload says. The other payloads get the same end.
func (r *rig) handle(ctx context.Context, p Popped) error {
	acks := Acks{Flight: p.Flight}
	for _, job := range p.Jobs {
		word, rest, _ := strings.Cut(string(job.Payloads[0].Data), " ")
		switch word {
		case "bury":
			if _, err := r.claim.Bury(ctx, Burial{Flight: p.Flight, ID: job.ID, Policy: Bury, Error: rest}); err != nil {
				return err
			}
			continue
		case "hold":
			continue // it stays in flight
		case "long":
			rest = strings.Repeat("long", 50_000)
		}
		acks.IDs = append(acks.IDs, job.ID)
		acks.Answers = append(acks.Answers, Answer{ID: job.ID, Callers: job.Callers, Result: []byte(rest)})
	}
	if len(acks.IDs) == 0 {
		return nil
	}
	_, err := r.claim.Ack(ctx, acks)
	return err
}

// wantReply compares the reply to a call, except its token.
func wantReply(t *testing.T, what string, got lowkiq.Reply, err error, state lowkiq.ReplyState, text string) {
	t.Helper()
	if said := string(got.Result) + got.Error; err != nil || got.State != state || said != text || got.Token == "" {
		t.Errorf("%s: got %.200s, %v, want %s with %.100q", what, fmt.Sprintf("%+v", got), err, state, text)
	}
}

func testCallOfEachEnd(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.serve()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for payload, want := range map[string]struct {
		state lowkiq.ReplyState
		text  string
	}{
		"say 42":   {lowkiq.ReplyDone, "42"},
		"say":      {lowkiq.ReplyDone, ""},
		"long":     {lowkiq.ReplyDone, strings.Repeat("long", 50_000)},
		"bury why": {lowkiq.ReplyBuried, "why"},
	} {
		got, err := r.c.Call(ctx, "q", job("a", payload))
		wantReply(t, payload, got, err, want.state, want.text)
		again, err := r.c.Reply(ctx, "q", "a", got.Token)
		wantReply(t, payload+", again", again, err, want.state, want.text)
	}
	deleted := make(chan error, 1)
	go func() {
		got, err := r.c.Call(ctx, "q", job("later", "say no", in(time.Hour)))
		if err == nil && got.State != lowkiq.ReplyDeleted {
			err = fmt.Errorf("got %+v", got)
		}
		deleted <- err
	}()
	until(t, "the job waits", func() bool { _, ok, err := browse.Of(r.q).Job(ctx, "later"); return ok && err == nil })
	_, err := browse.Of(r.q).Delete(ctx, browse.Anywhere, "later")
	r.noErr(err)
	r.noErr(<-deleted)
	all, err := r.c.Calls(ctx, "q", time.Hour, job("a", "say 1"), job("", "no id"), job("b", "say 2"))
	r.noErr(err)
	wantReply(t, "first", all[0].Reply, all[0].Err, lowkiq.ReplyDone, "1")
	wantReply(t, "last", all[2].Reply, all[2].Err, lowkiq.ReplyDone, "2")
	if !errors.Is(all[1].Err, ErrID) || all[1].Reply.State != "" {
		t.Errorf("without an id: got %+v, want it refused", all[1])
	}
	none, err := r.c.Calls(ctx, "q", 0)
	eq(t, "no calls", fmt.Sprint(none, err), "[] <nil>")
}

// testCallMany checks that each call gets the answer to its own payload, also if ids and data are equal.
func testCallMany(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.serve()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	const callers, each = 20, 25
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			for i := range each {
				// Each caller has an id, so that the answer is for its own payload. One id is common to
				// all.
				text := fmt.Sprint(n, "-", i)
				calls, err := r.c.Calls(ctx, "q", 0, job(fmt.Sprint("own", n), "say "+text), job("shared", "say the same"))
				if err != nil {
					t.Errorf("call %s: %v", text, err)
					return
				}
				wantReply(t, "own "+text, calls[0].Reply, calls[0].Err, lowkiq.ReplyDone, text)
				wantReply(t, "shared "+text, calls[1].Reply, calls[1].Err, lowkiq.ReplyDone, "the same")
			}
		})
	}
	all.Wait()
	eq(t, "calls that wait", r.c.Waiting(), 0)
}

// overWhenClosed is a context whose deadline has passed once over is closed.
type overWhenClosed struct {
	context.Context
	over chan struct{}
}

func (c overWhenClosed) Done() <-chan struct{} { return c.over }
func (c overWhenClosed) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func testCallContextEnds(t *testing.T, b *backend) {
	r := newRig(t, b)
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	if got, err := r.c.Call(ended, "q", job("before", "say")); !errors.Is(err, context.Canceled) {
		t.Errorf("before it began: got %+v, %v", got, err)
	}
	release := r.q.HoldCommits()
	pushing, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { _, err := r.c.Call(pushing, "q", job("pushing", "say")); done <- err }()
	until(t, "the push waits", func() bool { _, waiting := r.q.CountCommits(); return waiting > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("while it was pushed: got %v", err)
	}
	short := overWhenClosed{r.ctx, make(chan struct{})}
	late := make(chan lowkiq.Reply, 1)
	go func() {
		reply, err := r.c.Call(short, "q", job("short", "say"))
		late <- reply
		done <- err
	}()
	until(t, "the push waits", func() bool { _, waiting := r.q.CountCommits(); return waiting > 0 })
	close(short.over)
	release()
	if reply := <-late; reply.State != lowkiq.ReplyPending || reply.Token == "" {
		t.Errorf("a wait that is over before the push: got %+v, want it pending", reply)
	}
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that is over before the push: got %v", err)
	}
	waiting, enough := context.WithCancelCause(r.ctx)
	cause := errors.New("enough")
	got := make(chan lowkiq.Reply, 1)
	go func() {
		reply, err := r.c.Call(waiting, "q", job("waiting", "say 1"))
		got <- reply
		done <- err
	}()
	until(t, "the job waits", func() bool { _, ok, err := browse.Of(r.q).Job(r.ctx, "waiting"); return ok && err == nil })
	enough(cause)
	reply := <-got
	if err := <-done; !errors.Is(err, cause) || reply.State != lowkiq.ReplyPending || reply.Token == "" {
		t.Errorf("while it waited: got %+v, %v, want it pending, and the cause", reply, err)
	}
	r.serve()
	until(t, "the reply", func() bool {
		later, err := r.c.Reply(r.ctx, "q", "waiting", reply.Token)
		r.noErr(err)
		return later.State == lowkiq.ReplyDone && string(later.Result) == "1"
	})
	eq(t, "calls that wait", r.c.Waiting(), 0)
}

// testCallClosed checks that calls end at once with an error when their client is closed.
func testCallClosed(t *testing.T, b *backend) {
	r := newRig(t, b)
	ends := make(chan error, 10)
	c := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
	for i := range cap(ends) {
		go func() {
			got, err := c.Call(r.ctx, "q", job(fmt.Sprint("id", i), "say"))
			if errors.Is(err, ErrClosed) && got.State == lowkiq.ReplyPending && got.Token != "" {
				err = nil
			}
			ends <- err
		}()
	}
	until(t, "all wait", func() bool {
		stats, err := r.q.Stats(r.ctx)
		r.noErr(err)
		return stats.Jobs.Ready == cap(ends) && c.Waiting() == cap(ends)
	})
	until(t, "all know that they are stored", func() bool { return c.WaitingStored() == cap(ends) })
	r.noErr(c.Close())
	for range cap(ends) {
		select {
		case err := <-ends:
			if err != nil {
				t.Errorf("a call: got %v, want %v", err, ErrClosed)
			}
		case <-time.After(patience):
			t.Fatal("a call of a client that was closed does not end")
		}
	}
	if got, err := c.Call(r.ctx, "q", job("late", "say")); !errors.Is(err, ErrClosed) {
		t.Errorf("a call of a closed client: got %+v, %v, want %v", got, err, ErrClosed)
	}
}

// testCallGone checks that a payload that Redis has lost has no end, and its call ends with an error.
func testCallGone(t *testing.T, b *backend) {
	r := newRig(t, b)
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := r.c.Call(ctx, "q", job("lost", "say", in(time.Hour)))
		done <- err
	}()
	until(t, "the job waits", func() bool { _, ok, err := browse.Of(r.q).Job(ctx, "lost"); return ok && err == nil })
	r.noErr(r.c.DB().ForTests().HDel(ctx, r.s.Keys().Jobs, "lost").Err())
	r.noErr(r.c.DB().ForTests().Del(ctx, r.s.Keys().Due).Err())
	if err := <-done; !errors.Is(err, lowkiq.ErrNoReply) {
		t.Errorf("got %v, want %v", err, lowkiq.ErrNoReply)
	}
}

// testCallByMiddlewares checks that the client looks for replies under the ids that middlewares have set.
func testCallByMiddlewares(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules("q", PushRules{Middlewares: []Middleware{func(_ string, next Pusher) Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
			if jobs[0].ID == "dropped" {
				return make([]Result, len(jobs)), nil
			}
			for i := range jobs {
				jobs[i].ID = "tenant-" + jobs[i].ID
			}
			return next(ctx, jobs)
		}
	}}}))
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	got, done := lowkiq.Reply{}, make(chan error, 1)
	go func() {
		var err error
		got, err = r.c.Call(ctx, "q", job("a", "say 1"))
		done <- err
	}()
	until(t, "it was looked for", func() bool { return r.c.ReplyChecks() > 0 })
	r.serve()
	r.noErr(<-done)
	wantReply(t, "call", got, nil, lowkiq.ReplyDone, "1")
	eq(t, "id", got.ID, "tenant-a")
	again, err := r.c.Reply(ctx, "q", got.ID, got.Token)
	wantReply(t, "again", again, err, lowkiq.ReplyDone, "1")
	if got, err := r.c.Call(ctx, "q", job("dropped", "say 1")); !errors.Is(err, lowkiq.ErrNoReply) {
		t.Errorf("a push that a middleware has dropped: got %+v, %v", got, err)
	}
}

// TestCallsBearBrokenConnections checks that calls get their replies if any connection breaks while they wait.
func TestCallsBearBrokenConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRig(t, &backend{url: server.URL()})
	r.serve()
	proxy := redistest.NewProxy(t, server.Addr())
	through := &backend{url: proxy.URL()}
	c := through.open(t, func(cfg *Config) { cfg.Cluster, cfg.Timeout = r.c.Cluster(), 2*time.Second })
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	stop := make(chan struct{})
	var breaker, all sync.WaitGroup
	breaker.Go(func() {
		for pause := 30 * time.Millisecond; ; pause += pause / 20 { // so that calls end where an answer takes longer
			select {
			case <-time.After(pause):
				proxy.DropAll()
			case <-stop:
				return
			}
		}
	})
	var unknown, ended int
	var mu sync.Mutex // guards the two
	for n := range 10 {
		all.Go(func() {
			for i := range 20 {
				text := fmt.Sprint(n, "-", i)
				got, err := c.Call(ctx, "q", job("id"+text, "say "+text))
				mu.Lock()
				switch {
				case err == nil && string(got.Result) == text:
					ended++
				case Transient(err) && got.State == "": // the push: nobody knows whether it was stored
					unknown++
				default:
					t.Errorf("call %s: got %+v, %v", text, got, err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(stop)
	breaker.Wait()
	if ended == 0 {
		t.Error("no call has ended")
	}
	t.Logf("%d calls have ended, of %d the push failed", ended, unknown)
}

// TestCallsOverARestart kills Redis while calls wait. It comes back with its file.
func TestCallsOverARestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Durable...)
	r := newRig(t, &backend{url: server.URL()})
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	ends := make(chan error, 20)
	for i := range cap(ends) {
		go func() {
			got, err := r.c.Call(ctx, "q", job(fmt.Sprint("id", i), fmt.Sprint("say ", i)))
			if err == nil && string(got.Result) != fmt.Sprint(i) {
				err = fmt.Errorf("got %+v, want %d", got, i)
			}
			ends <- err
		}()
	}
	until(t, "all wait", func() bool { return r.c.WaitingStored() == cap(ends) })
	server.Kill()
	server.Restart()
	r.serve()
	for range cap(ends) {
		r.noErr(<-ends)
	}
}

// TestCallsWithoutMessages checks that a client that may not subscribe looks for its replies, and that a client that
// may not look gets messages.
func TestCallsWithoutMessages(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRig(t, &backend{url: server.URL()})
	r.serve()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for name, lacks := range map[string]string{"no messages": "-subscribe", "no look": "-hexists"} {
		c := (&backend{url: setUser(t, server, strings.ReplaceAll(name, " ", "-"), "on", ">PASSWORD", "~*", "&*", "+@all", lacks)}).open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
		got, err := c.Call(ctx, "q", job(name, "say "+name))
		wantReply(t, name, got, err, lowkiq.ReplyDone, name)
	}
	c := (&backend{url: setUser(t, server, "neither", "on", ">PASSWORD", "~*", "&*", "+@all", "-subscribe", "-hexists")}).open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
	got, err := c.Call(ctx, "q", job("neither", "hold"))
	if err == nil || !strings.Contains(err.Error(), "answered") || got.State != lowkiq.ReplyPending {
		t.Errorf("neither: got %+v, %v, want it pending, and what Redis says", got, err)
	}
}
