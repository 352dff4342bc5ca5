package node

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestCall checks that a call gets the handler's answer, also after a retry, and that calls with equal data get answers of
// their own.
func TestCall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	failed := map[string]bool{} // one shard: one lane
	rules := QueueConfig{Name: "quotes", Shards: 1, RetryFunc: func(int) time.Duration { return time.Millisecond }, Rules: rules.Rules{Exhausted: protocol.Bury, MaxRetryCount: 2}}
	n := start(t, Config{Redis: server.URL()}, rules, func(_ context.Context, b *lowkiq.Batch) error {
		job := b.Jobs[0]
		switch {
		case job.Callers == 0:
			return errors.New("got no callers")
		case job.ID == "never":
			return lowkiq.Bury{Reason: "no such thing"}
		case job.ID == "again" && !failed[job.ID]:
			failed[job.ID] = true
			b.Answer(job.ID).Result([]byte("of a failure"))
			return errors.New("not yet")
		case job.ID != "silent":
			b.Answer(job.ID).Result(fmt.Appendf(nil, "%s of %d", job.Payloads[0].Data, len(job.Payloads)))
		}
		return nil
	}).serving()
	client := n.Client()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for id, want := range map[string]lowkiq.Reply{
		"acme":   {State: lowkiq.ReplyDone, Result: []byte("x of 1")},
		"again":  {State: lowkiq.ReplyDone, Result: []byte("x of 1")},
		"silent": {State: lowkiq.ReplyDone},
		"never":  {State: lowkiq.ReplyBuried, Error: "no such thing"},
	} {
		got, err := client.Call(ctx, "quotes", lowkiq.Push{ID: id, Payload: []byte("x")})
		if err != nil || got.ID != id || got.State != want.State || string(got.Result) != string(want.Result) || (got.Result == nil) != (want.Result == nil) || got.Error != want.Error {
			t.Errorf("%s: got %+v, %v, want %+v", id, got, err, want)
		}
		later, err := client.Reply(ctx, "quotes", id, got.Token)
		if err != nil || later.State != want.State || string(later.Result) != string(want.Result) {
			t.Errorf("%s, later: got %+v, %v, want %+v", id, later, err, want)
		}
	}
	if _, err := client.Reply(ctx, "quotes", "acme", "AAAAAAAAAAAAAAAAAAAAAA"); !errors.Is(err, lowkiq.ErrNoReply) {
		t.Errorf("a stranger's token: got %v, want ErrNoReply", err)
	}
	var wg sync.WaitGroup
	for range 20 { // equal data: calls that wait together are not merged
		wg.Go(func() {
			got, err := client.Call(ctx, "quotes", lowkiq.Push{ID: "acme", Payload: []byte("x")})
			if err != nil || got.State != lowkiq.ReplyDone {
				t.Errorf("got %+v, %v, want it done", got, err)
			}
		})
	}
	wg.Wait()
}

// overWhen is a context whose deadline is past once a channel is closed.
type overWhen struct {
	context.Context
	over chan struct{}
}

func (c overWhen) Done() <-chan struct{} { return c.over }

func (c overWhen) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestCallPending checks that a call whose time is over is pending, and that its reply can be read later.
func TestCallPending(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	gate, begun := make(chan struct{}), make(chan struct{})
	n := start(t, Config{Redis: server.URL()}, QueueConfig{Name: "quotes", Shards: 1}, func(_ context.Context, b *lowkiq.Batch) error {
		close(begun)
		<-gate
		b.Answer("acme").Result([]byte("42"))
		return nil
	}).serving()
	got, err := n.Client().Call(overWhen{t.Context(), begun}, "quotes", lowkiq.Push{ID: "acme"})
	if !errors.Is(err, context.DeadlineExceeded) || got.State != lowkiq.ReplyPending || got.Token == "" {
		t.Fatalf("got %+v, %v, want it pending", got, err)
	}
	later, err := n.Client().Reply(t.Context(), "quotes", "acme", got.Token)
	if err != nil || later.State != lowkiq.ReplyPending {
		t.Errorf("got %+v, %v, want it pending", later, err)
	}
	close(gate)
	await(t, "the reply", func() bool {
		later, err = n.Client().Reply(t.Context(), "quotes", "acme", got.Token)
		return err != nil || later.State != lowkiq.ReplyPending
	})
	if err != nil || string(later.Result) != "42" {
		t.Errorf("got %+v, %v, want 42", later, err)
	}
}

// TestState checks a counter for each id that is the handler's only effect. It must be exact.
func TestState(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rules := QueueConfig{Name: "counters", Shards: 2, Rules: rules.Rules{State: time.Hour, BatchSize: 3}}
	n := start(t, Config{Redis: server.URL()}, rules, func(_ context.Context, b *lowkiq.Batch) error {
		for _, job := range b.Jobs {
			count, _ := strconv.Atoi(string(job.State))
			b.Answer(job.ID).State([]byte(strconv.Itoa(count + len(job.Payloads)))).Result([]byte(strconv.Itoa(count + len(job.Payloads))))
		}
		return nil
	}).serving()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const calls, ids = 300, 7
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			if got, err := n.Client().Call(ctx, "counters", lowkiq.Push{ID: strconv.Itoa(i % ids), Payload: []byte(strconv.Itoa(i))}); err != nil {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	total := 0
	for i := range ids {
		got, err := n.Client().Call(ctx, "counters", lowkiq.Push{ID: strconv.Itoa(i)})
		count, _ := strconv.Atoi(string(got.Result))
		if total += count - 1; err != nil {
			t.Error(err)
		}
	}
	if total != calls {
		t.Errorf("got %d counted, want %d", total, calls)
	}
}

// TestAnswersThatAreRefused checks that a state without the rule, a state for an id outside the batch and a state that is too
// long are failures with the reason.
func TestAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rules := QueueConfig{Name: "quotes", Shards: 1, Rules: rules.Rules{MaxRetryCount: -1, Exhausted: protocol.Bury}}
	n := start(t, Config{Redis: server.URL()}, rules, func(_ context.Context, b *lowkiq.Batch) error {
		switch id := b.Jobs[0].ID; id {
		case "state":
			b.Answer(id).State([]byte("1"))
		case "stranger":
			b.Answer("other").Result(nil)
		case "long":
			b.Answer(id).Result(make([]byte, lowkiq.MaxResultBytes+1))
		}
		return nil
	}).serving()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for id, want := range map[string]string{
		"state":    "the handler answered with a state, and the queue keeps none: its rule state says how long they are kept",
		"stranger": `the handler answered about id "other", which is not in the batch, so all of it counts as failed`,
		"long":     "its result is 262145 bytes, at most 262144 are allowed",
	} {
		got, err := n.Client().Call(ctx, "quotes", lowkiq.Push{ID: id})
		if err != nil || got.State != lowkiq.ReplyBuried || got.Error != want {
			t.Errorf("%s: got %+v, %v, want it buried with %q", id, got, err, want)
		}
	}
}

// TestAnswersAreEncoded checks that results and states are stored with the queue's codec, like its payloads.
func TestAnswersAreEncoded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	text := base64.StdEncoding
	codec := queue.Codec{
		Name:   "base64",
		Encode: func(p []byte) ([]byte, error) { return text.AppendEncode(nil, p), nil },
		Decode: func(p []byte) ([]byte, error) { return text.AppendDecode(nil, p) },
	}
	rules := QueueConfig{Name: "quotes", Shards: 1, Rules: rules.Rules{State: time.Hour}, Codec: codec}
	n := start(t, Config{Redis: server.URL()}, rules, func(_ context.Context, b *lowkiq.Batch) error {
		b.Answer("acme").State([]byte("secret state")).Result(append([]byte("secret, before: "), b.Jobs[0].State...))
		return nil
	}).serving()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	token := ""
	for _, want := range []string{"secret, before: ", "secret, before: secret state"} {
		got, err := n.Client().Call(ctx, "quotes", lowkiq.Push{ID: "acme"})
		if token = got.Token; err != nil || string(got.Result) != want {
			t.Errorf("got %+v, %v, want %q", got, err, want)
		}
	}
	db := n.Client().Protocol().DB()
	keys := db.Keys.Shard("quotes", 1, 0)
	state, err1 := db.Do(ctx, "read", "HGET", keys.States, "acme")
	reply, err2 := db.Do(ctx, "read", "GET", keys.ReplyTo(token))
	if want := text.EncodeToString([]byte("secret state")); err1 != nil || redisdb.Text(state) != want {
		t.Errorf("got the state %q, %v, want %q", state, err1, want)
	}
	if want := "done\n" + text.EncodeToString([]byte("secret, before: secret state")); err2 != nil || redisdb.Text(reply) != want {
		t.Errorf("got the reply %q, %v, want %q", reply, err2, want)
	}
}

// TestNote checks that notes of a handler are shown while it has the job. A state in a note is kept, however the job ends. The
// progress is deleted.
func TestNote(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	noted, seen := make(chan error), make(chan struct{})
	late := make(chan *lowkiq.Batch, 1)
	rules := QueueConfig{Name: "files", Shards: 1, Rules: rules.Rules{State: time.Hour}, RetryFunc: func(int) time.Duration { return time.Millisecond }}
	n := start(t, Config{Redis: server.URL()}, rules, func(ctx context.Context, b *lowkiq.Batch) error {
		if string(b.Jobs[0].State) == "page 12" {
			late <- b
			return nil
		}
		noted <- errors.Join(
			b.Note(ctx, "a", lowkiq.Note{Progress: .25, Log: "page 11"}),
			b.Note(ctx, "a", lowkiq.Note{Progress: .5, Log: "page 12", State: []byte("page 12")}))
		<-seen
		return errors.New("and then it fails")
	}).serving()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := n.Client().Push(ctx, "files", lowkiq.Push{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the notes", noted); err != nil {
		t.Fatal(err)
	}
	q, err := n.Client().Queue(ctx, "files")
	if err != nil {
		t.Fatal(err)
	}
	job, _, err := browse.Of(q.Protocol()).Job(ctx, "a")
	if err != nil || job.Progress == nil || job.Progress.Share != .5 || job.Progress.Log != "page 12" || job.Progress.At.IsZero() {
		t.Errorf("got %+v, %v, want it half done, on page 12", job.Progress, err)
	}
	seen <- struct{}{}
	b := receive(t, "the second attempt, with the state", late)
	await(t, "its end", func() bool {
		_, ok, err := browse.Of(q.Protocol()).Job(ctx, "a")
		return err == nil && !ok
	})
	if err := b.Note(ctx, "a", lowkiq.Note{Progress: 1}); !errors.Is(err, lowkiq.ErrEnded) {
		t.Errorf("a note after the call: got %v, want ErrEnded", err)
	}
	for _, fence := range []int64{b.Fence, b.Fence - 1} {
		err := q.Protocol().Of("a").Note(ctx, fence, protocol.Note{Flight: b.Flight, ID: "a", Note: lowkiq.Note{Progress: 1}})
		if !errors.Is(err, lowkiq.ErrEnded) {
			t.Errorf("a note with the fence: got %v, want ErrEnded", err)
		}
	}
	db := n.Client().Protocol().DB()
	if left, err := db.Do(ctx, "look", "EXISTS", db.Keys.Shard("files", 1, 0).Progress); err != nil || left != int64(0) {
		t.Errorf("got %v, %v of progress left, want none", left, err)
	}
}

// TestEmptyState checks that a state of zero bytes is not deleted, even if a codec makes nil of it.
func TestEmptyState(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	same := func(p []byte) ([]byte, error) { return append([]byte(nil), p...), nil }
	for name, codec := range map[string]queue.Codec{"plain": {}, "coded": {Name: "same", Encode: same, Decode: same}} {
		rules := QueueConfig{Name: name, Shards: 1, Rules: rules.Rules{State: time.Hour}, Codec: codec}
		n := start(t, Config{Redis: server.URL(), Name: name}, rules, func(_ context.Context, b *lowkiq.Batch) error {
			state := b.Jobs[0].State
			b.Answer("acme").State([]byte{}).Result(fmt.Appendf(nil, "%t %d", state != nil, len(state)))
			return nil
		}).serving()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, want := range []string{"false 0", "true 0", "true 0"} {
			if got, err := n.Client().Call(ctx, name, lowkiq.Push{ID: "acme"}); err != nil || string(got.Result) != want {
				t.Errorf("%s: got %q, %v, want %q", name, got.Result, err, want)
			}
		}
	}
}
