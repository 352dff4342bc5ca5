// Package relay answers one question: how do follow-ups reach their queues? A [Relay] reads the follow-ups that wait in
// shards, delivers them and removes them.
//
// Each follow-up has a number, and the shard that gets it keeps the last number of each source. So several relays may
// work on a shard at once, and a relay may die at any moment: what is delivered again is refused. A relay needs no claim.
//
// Follow-ups of a shard for a shard of another queue, which is their target, arrive in order. If a target refuses a
// follow-up, all later follow-ups of this source for this target wait. Other targets go on.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Redis has the requests of a relay. *protocol.Client implements it.
type Redis interface {
	Queue(ctx context.Context, name string) (*protocol.Queue, error)
	ReadOutgoing(ctx context.Context, n, size int, pages ...*protocol.OutgoingPage)
	DeliverOutgoing(ctx context.Context, shipments []*protocol.Shipment)
	TrimPages(ctx context.Context, pages ...*protocol.OutgoingPage) error
	EncodeFollowUps(ctx context.Context, source string, hops int, all []lowkiq.FollowUp) ([]protocol.FollowUp, error)
}

// Config has the dependencies of a relay on its process.
type Config struct {
	Redis Redis
	// Decoder returns the function that decodes payloads of a queue, nil if they are stored as they are pushed. It
	// returns an error if this process does not have the queue's codec.
	Decoder func(ctx context.Context, queue string) (func([]byte) ([]byte, error), error)
	Now     func() time.Duration // a clock that never jumps
	Log     *slog.Logger
	Failed  func(s lowkiq.Shard, err error) // reports that follow-ups of a shard wait
	// Dropped reports that a follow-up is dropped because its queue will never take it. err is a protocol.ErrFollowUp or a
	// protocol.ErrHops.
	Dropped func(s lowkiq.Shard, o *protocol.Outgoing, err error)
}

// The pauses before a target that has refused a follow-up is tried again.
const (
	firstPause = time.Second
	maxPause   = time.Minute
)

// slowPause is how long follow-ups wait for the middlewares and the codec of a queue after these were slow.
const slowPause = 3 * verdict.EncodePatience

// Bounds of a round, which reads a page of each of some shards.
const (
	maxSources  = 16        // shards of a round
	maxPage     = 200       // follow-ups of a shard
	maxPageSize = 512 << 10 // bytes of their payloads
)

// Relay delivers follow-ups. Its methods may be called by several goroutines, and Run by one.
type Relay struct {
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	sources map[lowkiq.Shard]*source // guarded by mu

	// slowUntil says until when follow-ups wait for code of users, by Config.Now. Only Run uses it.
	slowUntil map[userCode]time.Duration
}

// userCode is the code of users that decodes or encodes the payloads of a queue.
type userCode struct {
	queue   string
	encodes bool
}

// Reasons returns why follow-ups wait, by the queue of their shards.
func (r *Relay) Reasons() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all map[string]string
	for _, s := range r.sources {
		if s.reason == "" {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[s.shard.Queue] = s.reason
	}
	return all
}

// source is a shard with follow-ups. Only Run uses the fields from after on.
type source struct {
	shard  *protocol.Shard
	kicked bool // there may be new follow-ups; guarded by Relay.mu
	anew   bool // look at all of them; guarded by Relay.mu
	// reason is why follow-ups wait, "" if none waits for a blocked target; guarded by Relay.mu.
	reason string

	after   int64 // all follow-ups up to this number are delivered or wait for a blocked target
	again   bool  // the last pass ended early
	targets map[target]*blocked
	queues  map[string]*protocol.Queue // by name, as the blocked targets know them
	pause   time.Duration              // after an error of Redis; 0 if there was none
	retryAt time.Duration              // try again then, after an error of Redis
}

// target is a shard of a queue. Index is -1 if the queue cannot be opened.
type target struct {
	queue string
	index int
}

// blocked is a target that has refused a follow-up.
type blocked struct {
	first int64 // number of the first follow-up that waits
	pause time.Duration
	until time.Duration // by Config.Now
	due   bool          // the present pass tries it again
}

// New returns a relay.
func New(cfg Config) *Relay {
	return &Relay{cfg: cfg, wake: make(chan struct{}, 1), sources: map[lowkiq.Shard]*source{}, slowUntil: map[userCode]time.Duration{}}
}

// Kick makes the relay look at a shard. If anew is true, it looks at all its follow-ups, else at new ones.
func (r *Relay) Kick(s *protocol.Shard, anew bool) {
	r.mu.Lock()
	of := r.sources[s.Shard]
	if of == nil || of.shard != s {
		of = &source{shard: s, targets: map[target]*blocked{}, queues: map[string]*protocol.Queue{}}
		r.sources[s.Shard] = of
	}
	of.kicked, of.anew = true, of.anew || anew
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Forget ends the work on a shard that this process has released.
func (r *Relay) Forget(s lowkiq.Shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sources, s)
}

// Run works until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
		next := time.Duration(0)
		for ctx.Err() == nil {
			var due []*source
			if due, next = r.takeDue(); len(due) == 0 {
				break
			}
			r.work(ctx, due)
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// takeDue returns sources to work on now. If there are none, it returns the time until the next source is due, 0 if none
// will be.
func (r *Relay) takeDue() (due []*source, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Now()
	for _, s := range r.sources {
		at, waits := s.nextTry()
		if s.kicked || s.again {
			at, waits = now, true
		}
		if s.pause > 0 {
			at = max(at, s.retryAt)
		}
		if !waits {
			continue
		}
		if at > now {
			if next == 0 || at-now < next {
				next = at - now
			}
			continue
		}
		if len(due) == maxSources {
			break
		}
		if s.anew {
			s.reset()
		}
		s.kicked, s.anew, s.again = false, false, false
		due = append(due, s)
	}
	return due, next
}

// nextTry returns when the next blocked target is tried again. waits is false if there is none.
func (s *source) nextTry() (at time.Duration, waits bool) {
	for _, b := range s.targets {
		if !waits || b.until < at {
			at, waits = b.until, true
		}
	}
	return at, waits
}

// reset makes the next pass look at all follow-ups. Blocked targets keep their pauses.
func (s *source) reset() { s.after = 0 }

// pass is the work on a source from its first follow-up that may be delivered to its last follow-up.
type pass struct {
	*source
	page *protocol.OutgoingPage
	// freed means that a blocked target takes follow-ups again. The pass then visits all follow-ups after its beginning.
	freed bool
	end   bool
}

// work makes a pass over each source, a page of each at a time.
func (r *Relay) work(ctx context.Context, sources []*source) {
	var open []*pass
	for _, s := range sources {
		open = append(open, &pass{source: s, page: &protocol.OutgoingPage{Shard: s.shard, After: s.begin(r.cfg.Now())}})
	}
	for len(open) > 0 && ctx.Err() == nil {
		pages := make([]*protocol.OutgoingPage, len(open))
		for i, p := range open {
			pages[i] = p.page
		}
		r.cfg.Redis.ReadOutgoing(ctx, maxPage, maxPageSize, pages...)
		var shipments []*protocol.Shipment
		owners := map[*protocol.Shipment]*pass{}
		for _, p := range open {
			for _, s := range r.sort(ctx, p) {
				shipments, owners[s] = append(shipments, s), p
			}
		}
		if len(shipments) > 0 {
			r.cfg.Redis.DeliverOutgoing(ctx, shipments)
		}
		for _, s := range shipments {
			r.settle(owners[s], s)
		}
		if err := r.cfg.Redis.TrimPages(ctx, pages...); err != nil && ctx.Err() == nil {
			r.cfg.Log.Warn("follow-ups are delivered and not removed yet", "err", err)
			for _, p := range open {
				p.fail(r.cfg.Now())
			}
		}
		var next []*pass
		for _, p := range open {
			if p.advance(); !p.end {
				next = append(next, p)
			} else if !p.again && len(p.targets) == 0 {
				r.finish(p.source)
			}
		}
		open = next
	}
}

// finish forgets a source without waiting follow-ups, unless it was kicked meanwhile.
func (r *Relay) finish(s *source) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reason = ""
	if r.sources[s.shard.Shard] == s && !s.kicked {
		delete(r.sources, s.shard.Shard)
	}
}

// begin returns the number after which a pass begins, and marks the blocked targets that it tries again.
func (s *source) begin(now time.Duration) (after int64) {
	after, s.pause = s.after, 0
	for _, b := range s.targets {
		if b.due = b.until <= now; b.due {
			after = min(after, b.first-1)
		}
	}
	return after
}

// fail ends the pass after an error of Redis. The next pass begins anew after a pause.
func (p *pass) fail(now time.Duration) {
	p.restart()
	p.pause = firstPause
	p.retryAt = now + p.pause
}

// restart ends the pass. The next pass looks at all follow-ups, because this pass may have freed a target.
func (p *pass) restart() {
	p.end, p.again = true, true
	p.reset()
}

// advance goes on behind the page. If no target of earlier follow-ups is tried any more, it goes on behind all follow-ups
// that the passes before have seen.
func (p *pass) advance() {
	if p.end {
		return
	}
	if len(p.page.All) == 0 {
		p.end = true
		for to, b := range p.targets {
			if b.due { // a person has dropped what waited for it
				delete(p.targets, to)
			}
		}
		return
	}
	last := p.page.All[len(p.page.All)-1].Number
	visits := p.freed
	for _, b := range p.targets {
		visits = visits || b.due
	}
	if p.after = max(p.after, last); !visits {
		last = p.after
	}
	p.page = &protocol.OutgoingPage{Shard: p.shard, After: last}
}

// block records that a target has refused a follow-up.
func (r *Relay) block(p *pass, to target, first int64, err error) {
	b := p.targets[to]
	if b == nil {
		b = &blocked{pause: firstPause / 2}
		p.targets[to] = b
	}
	b.first, b.due = first, false
	b.pause = min(2*b.pause, maxPause)
	b.until = r.cfg.Now() + b.pause
	err = fmt.Errorf("follow-up %d for queue %q: %w", first, to.queue, err)
	r.mu.Lock()
	p.reason = err.Error()
	r.mu.Unlock()
	r.cfg.Failed(p.shard.Shard, err)
}

// free records that a blocked target takes follow-ups again.
func (p *pass) free(to target) {
	delete(p.targets, to)
	p.freed = true
}

// waits reports whether a follow-up waits behind another one for its target.
func (p *pass) waits(to target) bool {
	b := p.targets[to]
	return b != nil && !b.due
}

// sort makes shipments of the follow-ups of a page that may be delivered.
func (r *Relay) sort(ctx context.Context, p *pass) (shipments []*protocol.Shipment) {
	if p.page.Err != nil {
		if ctx.Err() == nil {
			r.mu.Lock()
			p.reason = p.page.Err.Error()
			r.mu.Unlock()
			r.cfg.Failed(p.shard.Shard, p.page.Err)
		}
		p.fail(r.cfg.Now())
		return nil
	}
	by := map[target]*protocol.Shipment{}
	for _, o := range p.page.All {
		whole := target{o.Queue, -1}
		if p.waits(whole) {
			continue
		}
		q, err := r.cfg.Redis.Queue(ctx, o.Queue)
		if err != nil {
			r.block(p, whole, o.Number, err)
			continue
		}
		if p.targets[whole] != nil {
			p.free(whole)
		}
		known := p.queues[o.Queue]
		if p.queues[o.Queue] = q; known != nil && known != q {
			// The queue has other shards now, so its follow-ups have other targets. A target that seems free may have an
			// earlier follow-up that was blocked at a former target.
			maps.DeleteFunc(p.targets, func(to target, _ *blocked) bool { return to.queue == o.Queue })
			p.restart()
			return nil
		}
		shard := q.Of(o.ID)
		to := target{o.Queue, shard.Index}
		if p.waits(to) {
			continue
		}
		if o.End != "" {
			err := r.encode(ctx, p, &o)
			switch {
			case err != nil && ctx.Err() != nil:
				p.fail(r.cfg.Now())
				return nil
			case errors.Is(err, protocol.ErrFollowUp), errors.Is(err, protocol.ErrHops):
				r.cfg.Dropped(p.shard.Shard, &o, err)
				p.page.Delivered = append(p.page.Delivered, o.Number)
				continue
			case err != nil:
				r.block(p, to, o.Number, err)
				continue
			}
		}
		if by[to] == nil {
			by[to] = &protocol.Shipment{From: p.shard, Queue: q, To: shard}
			shipments = append(shipments, by[to])
		}
		by[to].All = append(by[to].All, o)
	}
	return shipments
}

// encode puts a follow-up by the rule then into the form of its queue. The error is a protocol.ErrFollowUp or a
// protocol.ErrHops if the follow-up can never be delivered. Codecs and middlewares are code of users, and may panic or hang.
// After such code was slow, the follow-ups that need it wait, so that others do not wait for them.
func (r *Relay) encode(ctx context.Context, p *pass, o *protocol.Outgoing) error {
	source, one := p.shard.Queue, *o
	decoder, encoder := userCode{source, false}, userCode{one.Queue, true}
	if r.cfg.Now() < max(r.slowUntil[decoder], r.slowUntil[encoder]) {
		return verdict.ErrSlow
	}
	var decoded atomic.Bool
	stored, err := verdict.Encode(ctx, func(ctx context.Context) (protocol.FollowUp, error) {
		return r.encodeFrom(ctx, source, &one, &decoded)
	})
	var panicked *verdict.PanicError
	switch {
	case errors.As(err, &panicked):
		return fmt.Errorf("%w: a codec or a middleware panics: %v\n%s", protocol.ErrFollowUp, panicked.Value, panicked.Stack)
	case errors.Is(err, verdict.ErrSlow) && decoded.Load():
		r.slowUntil[encoder] = r.cfg.Now() + slowPause
	case errors.Is(err, verdict.ErrSlow):
		r.slowUntil[decoder] = r.cfg.Now() + slowPause
	}
	if err != nil {
		return err
	}
	o.FollowUp, o.End = stored, ""
	return nil
}

// encodeFrom returns a follow-up of a queue in its stored form. It sets decoded before it encodes.
func (r *Relay) encodeFrom(ctx context.Context, source string, o *protocol.Outgoing, decoded *atomic.Bool) (stored protocol.FollowUp, err error) {
	decode, err := r.cfg.Decoder(ctx, source)
	if err != nil {
		return stored, err
	}
	payload, err := o.Open()
	if err != nil {
		return stored, fmt.Errorf("%w: %w", protocol.ErrFollowUp, err)
	}
	_, text, _ := strings.Cut(o.End, "\n")
	push, err := verdict.PassOn(o.Queue, o.ID, payload, decode, map[string]string{"ended": o.EndWord(), "error": text})
	if err != nil {
		return stored, err
	}
	decoded.Store(true)
	all, err := r.cfg.Redis.EncodeFollowUps(ctx, source, protocol.HopsOf([]lowkiq.Payload{payload}), []lowkiq.FollowUp{push})
	switch {
	case err != nil:
		return stored, err
	case len(all) != 1:
		return stored, fmt.Errorf("%w: a middleware made %d jobs of it, must be 1", protocol.ErrFollowUp, len(all))
	}
	return all[0], nil
}

// settle records the outcome of a shipment.
func (r *Relay) settle(p *pass, s *protocol.Shipment) {
	p.page.Delivered = append(p.page.Delivered, s.Before...)
	for _, o := range s.All[:s.Delivered] {
		p.page.Delivered = append(p.page.Delivered, o.Number)
	}
	to := target{s.Queue.Name, s.To.Index}
	switch {
	case s.Err != nil:
		r.block(p, to, s.All[s.Delivered].Number, s.Err)
	case p.targets[to] != nil && p.targets[to].due:
		p.free(to)
	}
}
