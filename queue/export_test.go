package queue

import (
	"context"
	"runtime"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// What the tests see beyond the API: limits, and doors into the middle of a step. The tests are
// in package queue_test, as they look through queue/browse and queue/audit.

const (
	FewJobs    = fewJobs
	ChunkJobs  = chunkJobs
	MaxError   = maxError
	MaxCommits = maxCommits
)

// Rename returns a client of another cluster, or another one of the same, over the same
// connections. What it pushed is not written into the figures of the day, and nothing of it is under way after the test: the
// connections may be closed then.
func Rename(t interface{ Cleanup(func()) }, c *Client, cluster string) *Client {
	cfg := c.cfg
	cfg.Cluster = cluster
	other := newClient(cfg, c.db.With(cluster))
	t.Cleanup(other.registry.pushes.drop)
	return other
}

func (p *pushes) drop() {
	p.stop()
	p.step.Lock() // what is under way ends
	defer p.step.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// ClientOf is a client as that which opened the queue.
func ClientOf(q *Queue) *Client {
	return &Client{cfg: q.registry.cfg, db: q.registry.db, registry: q.registry}
}

// Layer is a queue in a layout that the registry does not name.
func (c *Client) Layer(name string, entry Entry) *Queue { return c.registry.newQueue(name, entry) }

// Rewrite changes an entry of the registry.
func (c *Client) Rewrite(ctx context.Context, name string, change func(*Entry) error) error {
	return c.registry.rewrite(ctx, name, change)
}

// Removal begins a deletion.
func (c *Client) Removal(ctx context.Context, name string, of Deletion) (*removal, error) {
	return c.registry.removal(ctx, name, of)
}

// Run calls a script.
func (c *Client) Run(ctx context.Context, s *redisdb.Script, keys []string, args ...any) (any, error) {
	return run(ctx, c.db, s, keys, args...)
}

// ParseEntry reads an entry.
func (c *Client) ParseEntry(name, text string) (Entry, error) { return c.registry.parse(name, text) }

// Gone reports whether the queue is deleted.
func (e Entry) Gone() bool { return e.gone() }

// LookSoon makes the next push ask for the queue's entry.
func (q *Queue) LookSoon() { q.looked.Store(int64(time.Since(q.made) - lookEvery)) }

// Idle has it be long since the last push.
func (q *Queue) Idle() { q.looked.Store(int64(time.Since(q.made) - lookLate)) }

// ShareAlways has each pop and ack ask the shared script first, also one that comes alone, and
// again after it could not serve the shard.
func (c *Client) ShareAlways() { c.registry.sharing.least, c.registry.sharing.unasked = 1, 0 }

// SharePatience sets how long pops and acks wait for shared requests that do not end.
func (c *Client) SharePatience(d time.Duration) { c.registry.sharing.patience = d }

// HoldShared takes the places of all shared requests to the server of a shard, so that pops and acks
// gather.
func (s *Shard) HoldShared(ctx context.Context) (release func()) {
	calls := s.registry.sharing.server(ctx, s)
	for held := false; !held; runtime.Gosched() { // a request whose answers are there may still be ending
		calls.mu.Lock()
		if held = calls.active == 0; held {
			calls.active = maxShared
		}
		calls.mu.Unlock()
	}
	return func() {
		for range maxShared {
			go calls.run()
		}
	}
}

// Gathered is how many pops and acks wait for the next shared request to the server of a shard.
func (s *Shard) Gathered(ctx context.Context) int {
	calls := s.registry.sharing.server(ctx, s)
	calls.mu.Lock()
	defer calls.mu.Unlock()
	return len(calls.waiting)
}

// HoldCommits takes the places of all commits, so that a push waits.
func (q *Queue) HoldCommits() (release func()) {
	for range maxCommits {
		q.commit.calls.join(nil)
	}
	return func() {
		for range maxCommits {
			q.commit.calls.run()
		}
	}
}

// Commits are the commits under way, and the pushes that wait for the next one.
func (q *Queue) Commits() (active, waiting int) {
	q.commit.calls.mu.Lock()
	defer q.commit.calls.mu.Unlock()
	return q.commit.calls.active, len(q.commit.calls.waiting)
}

// Numbered is the claim as it was after its pop with this number.
func (c *Claim) Numbered(pop int64) *Claim {
	c.popped = pop
	return c
}

// LastPop is the number of the last answered pop.
func (c *Claim) LastPop() int64 { return c.popped }

// Silence sets after how long a silent connection is tested.
func (w *Wakes) Silence(after time.Duration) { w.silence = after }

// Asked are the forms of messages.
type Answered = answered

var EncodeQuestion = encodeQuestion

func (c *Client) DecodeMail(payload string) Wake { return c.decodeMail(payload) }

func LayoutOf(q *Queue) int { return q.layout }

// The steps of a deletion.

func (r *removal) Begin(ctx context.Context) error               { return r.begin(ctx) }
func (r *removal) Mark(ctx context.Context) error                { return r.mark(ctx) }
func (r *removal) GiveUp(ctx context.Context, cause error) error { return r.giveUp(ctx, cause) }
func (r *removal) Remove(ctx context.Context) error              { return r.remove(ctx) }
func (r *removal) Finish(ctx context.Context) error              { return r.finish(ctx) }

// WaitingStored is how many calls without an end are known to be stored.
func (c *Client) WaitingStored() (n int) {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	for _, one := range c.replies.waiting {
		if one.stored {
			n++
		}
	}
	return n
}

// Hears reports whether messages arrive, Looked how often a call without an end was looked for at most.
func (c *Client) Hears() bool {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	return c.replies.heard
}

func (c *Client) Looked() (most int) {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	for _, one := range c.replies.waiting {
		if one.pause > replyLook { // it grows with each look
			most = max(most, int(one.pause/replyLook)-1)
		}
	}
	return most
}

// Replies are a client's, with another Redis.
type (
	Replies          struct{ r *replies }
	FakeSubscription = subscription
)

// Ended is how a call has ended; the zero value: not yet.
type Ended struct {
	Text string
	Err  error
}

func NewReplies(timeout time.Duration, subscribe func(context.Context) FakeSubscription, look func(ids []string) []Ended) *Replies {
	return &Replies{&replies{channel: "channel", timeout: timeout, subscribe: subscribe, waiting: map[string]*call{}, nudge: make(chan struct{}, 1),
		look: func(_ context.Context, calls []*call) []ended {
			ids, ends := make([]string, len(calls)), make([]ended, len(calls))
			for i, one := range calls {
				ids[i] = one.id
			}
			for i, end := range look(ids) {
				ends[i] = ended{end.Text, end.Err}
			}
			return ends
		}}}
}

func (r *Replies) CloseAndWait() {
	r.r.close()
	r.r.work.Wait()
}

// Joined are calls of replies.
type Joined struct {
	r     *replies
	calls []call
	Leave func()
}

func (r *Replies) Join(ctx context.Context, ids ...string) *Joined {
	q, jobs := &Queue{Queue: lowkiq.Queue{Shards: 1}, shards: []*Shard{nil}}, make([]lowkiq.Push, len(ids))
	for i := range jobs {
		jobs[i].ID = ids[i]
	}
	all := &Joined{r: r.r, calls: make([]call, len(ids))}
	_, all.Leave = r.r.join(ctx, q, jobs, all.calls)
	return all
}

// Pushed is the answer to the push of each.
func (j *Joined) Pushed(errs ...error) {
	results := make([]Result, len(errs))
	for i := range errs {
		results[i].Err = errs[i]
	}
	j.r.pushed(j.calls, results)
}

func (j *Joined) Token(i int) string { return j.calls[i].token }

// End is the end of a call, "" if there is none yet.
func (j *Joined) End(i int) string {
	select {
	case end := <-j.calls[i].ended:
		if end.err != nil {
			return end.err.Error()
		}
		return end.text
	default:
		return ""
	}
}
