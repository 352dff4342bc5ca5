package protocol

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// What the tests see beyond the API: limits, and doors into the middle of a step. The tests are in package
// protocol_test, because they use queue/browse and queue/audit.

const (
	FewJobs    = maxSharedJobs
	ChunkJobs  = maxChunkJobs
	MaxError   = maxError
	MaxCommits = maxCommits
)

// Rename returns a client of another cluster, or another client of the same cluster, over the same
// connections. Its pushes are not written into the figures of the day. Nothing of it is under way after the
// test, so the connections may be closed then.
func Rename(t interface{ Cleanup(func()) }, c *Client, cluster string) *Client {
	cfg := c.cfg
	cfg.Cluster = cluster
	other := newClient(cfg, c.db.With(cluster))
	t.Cleanup(other.registry.pushCounts.drop)
	return other
}

// drop ends the writer and loses the counts that it has not written.
func (p *pushCounts) drop() {
	p.mu.Lock()
	p.byQueue = map[string]*atomic.Uint64{}
	p.mu.Unlock()
	p.close()
}

// ClientOf returns a client like the client that opened the queue.
func ClientOf(q *Queue) *Client {
	return &Client{cfg: q.registry.cfg, db: q.registry.db, registry: q.registry}
}

// NewQueue returns a queue in a layout that the registry does not name.
func (c *Client) NewQueue(name string, entry RegistryEntry) *Queue {
	return c.registry.newQueue(name, entry)
}

// RewriteEntry changes an entry of the registry.
func (c *Client) RewriteEntry(ctx context.Context, name string, change func(*RegistryEntry) error) error {
	return c.registry.rewriteEntry(ctx, name, change)
}

// Run runs a script.
func (c *Client) Run(ctx context.Context, s *redisdb.Script, keys []string, args ...any) (any, error) {
	return runScript(ctx, c.db, s, keys, args...)
}

// ParseEntry reads the text of an entry.
func (c *Client) ParseEntry(name, text string) (RegistryEntry, error) {
	return c.registry.parseEntry(name, text)
}

// IsDeleted reports whether the queue is deleted.
func (e RegistryEntry) IsDeleted() bool { return e.isDeleted() }

// Rule returns the ruling of the entry about a mark, as a word.
func (e RegistryEntry) Rule(mark string, layout int) string {
	return []string{"deleted", "obsolete", "waits", "left"}[e.rule(readMark("REMOVED "+mark), layout)]
}

// CheckReplies makes the client look for the replies of its calls, once and now.
func (c *Client) CheckReplies() {
	r := c.replies
	r.mu.Lock()
	var all []*pendingCall
	for _, call := range r.waiting {
		if call.stored {
			all = append(all, call)
		}
	}
	r.mu.Unlock()
	r.finishFound(all, r.fetch(context.Background(), all))
}

// RefreshSoon makes the next push read the queue's entry.
func (q *Queue) RefreshSoon() { q.refreshed.Store(int64(time.Since(q.opened) - refreshEvery)) }

// MakeStale makes the queue as if its entry had not been read for long.
func (q *Queue) MakeStale() { q.expireEntry() }

// ShareAlways makes each pop and ack use the shared script first, also if it comes alone and after the
// script could not serve the shard.
func (c *Client) ShareAlways() { c.registry.shared.minParts, c.registry.shared.soloPops = 1, 0 }

// SetSharePatience sets how long pops and acks wait for shared requests that do not end.
func (c *Client) SetSharePatience(d time.Duration) { c.registry.shared.patience = d }

// HoldShared takes the places of all shared requests to the server of a shard, so that pops and acks wait.
func (s *Shard) HoldShared(ctx context.Context) (release func()) {
	calls := s.registry.shared.combinerOf(ctx, s)
	for held := false; !held; runtime.Gosched() { // a request whose answers are there may still be ending
		calls.mu.Lock()
		if held = calls.active == 0; held {
			calls.active = maxSharedRequests
		}
		calls.mu.Unlock()
	}
	return func() {
		for range maxSharedRequests {
			go calls.sendGroups()
		}
	}
}

// WaitingShared returns how many pops and acks wait for the next shared request to the server of a shard.
func (s *Shard) WaitingShared(ctx context.Context) int {
	calls := s.registry.shared.combinerOf(ctx, s)
	calls.mu.Lock()
	defer calls.mu.Unlock()
	return len(calls.waiting)
}

// HoldCommits takes the places of all commits, so that a push waits.
func (q *Queue) HoldCommits() (release func()) {
	for range maxCommits {
		q.commit.calls.startOrWait(nil)
	}
	return func() {
		for range maxCommits {
			q.commit.calls.sendGroups()
		}
	}
}

// CountCommits returns the number of commits under way, and of pushes that wait for the next commit.
func (q *Queue) CountCommits() (active, waiting int) {
	q.commit.calls.mu.Lock()
	defer q.commit.calls.mu.Unlock()
	return q.commit.calls.active, len(q.commit.calls.waiting)
}

// WithLastPop returns the claim as it was after its pop with this number.
func (c *Claim) WithLastPop(pop int64) *Claim {
	c.popped = pop
	return c
}

// LastPop returns the number of the last answered pop.
func (c *Claim) LastPop() int64 { return c.popped }

// SetSilence sets the silence after which a connection is tested.
func (w *Wakes) SetSilence(after time.Duration) { w.silence = after }

// AnswerMessage is the form of an answer to a question.
type AnswerMessage = answerMessage

var EncodeQuestion = encodeQuestion

func (c *Client) DecodeMail(payload string) Wake { return c.decodeMail(payload) }

func LayoutOf(q *Queue) int { return q.layout }

// WaitingStored returns the number of calls without an end that are known to be stored.
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

// RepliesConnected reports whether messages arrive.
func (c *Client) RepliesConnected() bool {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	return c.replies.connected
}

func (c *Client) ReplyChecks() (most int) {
	c.replies.mu.Lock()
	defer c.replies.mu.Unlock()
	for _, one := range c.replies.waiting {
		if one.checkPause > replyCheck { // it grows with each look
			most = max(most, int(one.checkPause/replyCheck)-1)
		}
	}
	return most
}

// Replies receives replies from a fake Redis.
type (
	Replies          struct{ r *replies }
	FakeSubscription = subscription
)

// Ended is the end of a call, with the zero value if it has none yet.
type Ended struct {
	Text string
	Err  error
}

func NewReplies(timeout time.Duration, subscribe func(context.Context) FakeSubscription, look func(ids []string) []Ended) *Replies {
	return &Replies{&replies{channel: "channel", timeout: timeout, subscribe: subscribe, waiting: map[string]*pendingCall{}, nudge: make(chan struct{}, 1),
		fetch: func(_ context.Context, calls []*pendingCall) []callEnd {
			ids, ends := make([]string, len(calls)), make([]callEnd, len(calls))
			for i, one := range calls {
				ids[i] = one.id
			}
			for i, end := range look(ids) {
				ends[i] = callEnd{text: end.Text, err: end.Err}
			}
			return ends
		}}}
}

func (r *Replies) CloseAndWait() {
	r.r.close()
	r.r.work.Wait()
}

// Joined has calls that wait for replies.
type Joined struct {
	r     *replies
	calls []pendingCall
	Leave func()
}

func (r *Replies) AddCalls(ctx context.Context, ids ...string) *Joined {
	q, jobs := &Queue{Queue: lowkiq.Queue{Shards: 1}, shards: []*Shard{nil}}, make([]lowkiq.Push, len(ids))
	for i := range jobs {
		jobs[i].ID = ids[i]
	}
	all := &Joined{r: r.r, calls: make([]pendingCall, len(ids))}
	_, all.Leave = r.r.addCalls(ctx, q, jobs, all.calls)
	return all
}

// MarkStored gives each call the result of its push.
func (j *Joined) MarkStored(errs ...error) {
	results := make([]Result, len(errs))
	for i := range errs {
		results[i].Err = errs[i]
	}
	j.r.markStored(j.calls, results)
}

func (j *Joined) Token(i int) string { return j.calls[i].token }

// End returns the end of a call, "" if it has none yet.
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

// FrozenJobs exports frozenJobs.
var FrozenJobs = frozenJobs
