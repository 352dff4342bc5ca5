package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// These tests run by a clock that moves only when all goroutines wait.

// fakeReplies is the Redis of replies: the connections that listen, and the replies that it stores.
type fakeReplies struct {
	begun time.Time

	mu    sync.Mutex // guards the fields below
	subs  []*fakeSubscription
	deaf  bool // connections are not confirmed
	dead  bool // they answer no ping
	pings int
	looks map[string][]int // by id: when it was looked for, seconds since the beginning
	found map[string]Ended // by id
}

type fakeSubscription struct {
	of     *fakeReplies
	news   chan redisdb.News
	broken chan struct{}
	once   sync.Once
}

func (s *fakeSubscription) Add(context.Context, ...string) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !s.of.deaf {
		s.news <- redisdb.News{Confirmed: true}
	}
	return nil
}

func (s *fakeSubscription) Receive(ctx context.Context, patience time.Duration) (redisdb.News, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case news := <-s.news:
		return news, nil
	case <-s.broken:
		return redisdb.News{}, net.ErrClosed
	case <-timer.C:
		return redisdb.News{}, context.DeadlineExceeded // it says that it is a timeout
	case <-ctx.Done():
		return redisdb.News{}, ctx.Err()
	}
}

func (s *fakeSubscription) Ping(context.Context) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.pings++
	if !s.of.dead {
		s.news <- redisdb.News{}
	}
	return nil
}

func (s *fakeSubscription) Close() error {
	s.once.Do(func() { close(s.broken) })
	return nil
}

// say sends a message to the present connection.
func (f *fakeReplies) say(text string) {
	f.mu.Lock()
	sub := f.subs[len(f.subs)-1]
	f.mu.Unlock()
	sub.news <- redisdb.News{Payload: text}
}

// last returns the present connection, and how many there have been.
func (f *fakeReplies) last() (*fakeSubscription, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subs[len(f.subs)-1], len(f.subs)
}

func (f *fakeReplies) lookedFor(id string) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.looks[id])
}

// newFakeReplies must run inside a synctest bubble.
func newFakeReplies(t *testing.T) (*fakeReplies, *Replies) {
	t.Helper()
	f := &fakeReplies{begun: time.Now(), looks: map[string][]int{}, found: map[string]Ended{}}
	r := NewReplies(5*time.Second, func(context.Context) FakeSubscription {
		f.mu.Lock()
		defer f.mu.Unlock()
		sub := &fakeSubscription{of: f, news: make(chan redisdb.News, 10), broken: make(chan struct{})}
		f.subs = append(f.subs, sub)
		return sub
	}, func(ids []string) (ends []Ended) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range ids {
			f.looks[id] = append(f.looks[id], int(time.Since(f.begun).Round(time.Second)/time.Second))
			ends = append(ends, f.found[id])
		}
		return ends
	})
	t.Cleanup(r.CloseAndWait)
	return f, r
}

func TestRepliesAreLookedForLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		call := r.AddCalls(t.Context(), "a", "refused")
		call.MarkStored(nil, errors.New("refused"))
		time.Sleep(50 * time.Second)
		eq(t, "looked for", f.lookedFor("a"), []int{1, 2, 4, 8, 16, 32, 48})
		eq(t, "looked for what is refused", len(f.lookedFor("refused")), 0)
		sub, _ := f.last()
		f.mu.Lock()
		f.deaf = true
		f.mu.Unlock()
		sub.Close() // messages may be lost from here on
		time.Sleep(4500 * time.Millisecond)
		eq(t, "looked for, deaf", f.lookedFor("a")[7:], []int{51, 52, 53, 54})
		f.mu.Lock()
		f.deaf = false
		f.mu.Unlock()
		sub, n := f.last()
		sub.Close()
		time.Sleep(400 * time.Millisecond)
		_, n2 := f.last()
		eq(t, "connections", n2, n+1)
		eq(t, "looked for, as soon as it hears", f.lookedFor("a")[11:], []int{55})
		f.mu.Lock()
		f.found["a"] = Ended{Text: "done\nx"}
		f.mu.Unlock()
		time.Sleep(time.Minute)
		eq(t, "its end", call.End(0), "done\nx")
		eq(t, "looked for in all", len(f.lookedFor("a")), 13)
		call.Leave()
	})
}

func TestRepliesAreDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		call := r.AddCalls(t.Context(), "a", "b", "c", "early")
		defer call.Leave()
		f.say(call.Token(3) + "\ndone") // before the push is answered
		call.MarkStored(nil, nil, nil, nil)
		f.say("nobodys " + call.Token(0) + " " + call.Token(1) + "\ndone\nsame\nfor both")
		f.say(call.Token(0) + "\nburied\nlater")
		f.say("")
		f.say("\n")
		f.mu.Lock()
		f.found["c"] = Ended{Text: "done\nlong"}
		f.mu.Unlock()
		f.say(call.Token(2)) // it is to be read
		synctest.Wait()
		for i, want := range []string{"done\nsame\nfor both", "done\nsame\nfor both", "done\nlong", "done"} {
			eq(t, fmt.Sprint("call ", i), call.End(i), want)
		}
		eq(t, "looked for", fmt.Sprint(f.lookedFor("a"), f.lookedFor("b"), f.lookedFor("c"), f.lookedFor("early")), "[] [] [0] []")
	})
}

// TestSilentRepliesAreTested checks that a silent connection is tested with a ping, and replaced if it does not answer.
func TestSilentRepliesAreTested(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		call := r.AddCalls(t.Context(), "a")
		defer call.Leave()
		call.MarkStored(nil)
		time.Sleep(95 * time.Second)
		_, n := f.last()
		eq(t, "connections", n, 1)
		f.mu.Lock()
		eq(t, "pings", f.pings, 3)
		f.dead = true
		f.mu.Unlock()
		time.Sleep(25*time.Second + 6*time.Second)
		_, n = f.last()
		eq(t, "connections after one that is dead", n, 2)
	})
}

// TestRepliesListenWhileThereAreCalls checks that a client listens for a minute after its last call, and again for the
// next call.
func TestRepliesListenWhileThereAreCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		first, second := r.AddCalls(t.Context(), "a"), r.AddCalls(t.Context(), "b")
		first.Leave()
		time.Sleep(2 * time.Minute)
		listens := func(what string, want bool, connections int) {
			t.Helper()
			synctest.Wait()
			sub, n := f.last()
			closed := false
			select {
			case <-sub.broken:
				closed = true
			default:
			}
			if closed == want || n != connections {
				t.Errorf("%s: listens %t with connection %d, want %t and %d", what, !closed, n, want, connections)
			}
		}
		listens("while one call waits", true, 1)
		second.Leave()
		time.Sleep(59 * time.Second)
		listens("59 s after it", true, 1)
		r.AddCalls(t.Context(), "c").Leave()
		time.Sleep(59 * time.Second)
		listens("59 s after another", true, 1)
		time.Sleep(2 * time.Second)
		listens("a minute after it", false, 1)
		time.Sleep(time.Hour)
		again := r.AddCalls(t.Context(), "d")
		listens("with a new call", true, 2)
		again.MarkStored(nil)
		f.say(again.Token(0) + "\ndone")
		synctest.Wait()
		eq(t, "its end", again.End(0), "done")
		again.Leave()
	})
}

// TestRepliesWithoutSubscription runs a Redis that does not confirm the subscription. A call waits a moment for it, and
// then looks for its reply.
func TestRepliesWithoutSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		f.deaf = true
		call := r.AddCalls(t.Context(), "a")
		eq(t, "waited for the subscription", time.Since(f.begun), 250*time.Millisecond)
		call.MarkStored(nil)
		time.Sleep(5 * time.Second)
		eq(t, "looked for", f.lookedFor("a"), []int{1, 2, 3, 4, 5})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		other := r.AddCalls(ended, "b")
		eq(t, "waited by a context that has ended", time.Since(began), 0)
		other.Leave()
		call.Leave()
	})
}

// TestClosedReplies checks that Close ends all waiting calls and goroutines. Later calls end at once.
func TestClosedReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		call := r.AddCalls(t.Context(), "stored", "pushing", "ended")
		f.say(call.Token(2) + "\ndone")
		synctest.Wait()
		r.CloseAndWait()
		for i, want := range []string{ErrClosed.Error(), ErrClosed.Error(), "done"} {
			eq(t, fmt.Sprint("call ", i), call.End(i), want)
		}
		call.MarkStored(nil, nil, nil)
		call.Leave()
		late := r.AddCalls(t.Context(), "late")
		eq(t, "late", late.End(0), ErrClosed.Error())
		late.Leave()
		r.CloseAndWait()
		_, n := f.last()
		eq(t, "connections", n, 1)
	})
}

// TestRepliesThatMayNotBeRead checks that an error of the look ends the wait, unless it may succeed later.
func TestRepliesThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := newFakeReplies(t)
		call := r.AddCalls(t.Context(), "gone", "waits")
		f.found["gone"] = Ended{Err: lowkiq.ErrNoReply}
		time.Sleep(3 * time.Second)
		eq(t, "looked for before it is stored", len(f.lookedFor("gone")), 0)
		call.MarkStored(nil, nil)
		time.Sleep(time.Second)
		if got := call.End(0); !strings.Contains(got, lowkiq.ErrNoReply.Error()) {
			t.Errorf("got %q, want %v", got, lowkiq.ErrNoReply)
		}
		eq(t, "the other", call.End(1), "")
		call.Leave()
	})
}
