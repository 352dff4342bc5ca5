package queue

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/internal/tally"
)

// pushed is what a client counts of the figures of a queue's day: payloads that its pushes have stored or merged, as Redis
// has answered. It is a part of days.Figures.
type pushed struct {
	Pushed uint64 `json:"pushed"`
}

// Since implements tally.Figures.
func (p pushed) Since(earlier pushed) pushed { return pushed{p.Pushed - earlier.Pushed} }

// Same implements tally.Figures.
func (p pushed) Same(other pushed) bool { return p == other }

// pushes counts the payloads that a client's pushes store, and writes the counts ten seconds after the first one, and so on while
// there are more, and when the client is closed. A push pays an addition, and nothing waits for Redis.
type pushes struct {
	db    *redisdb.DB
	armed atomic.Bool // a write is to come, or is under way
	ctx   context.Context
	stop  context.CancelFunc // ends a write that is under way

	step  sync.Mutex           // held while counts are written
	tally *tally.Tally[pushed] // its steps are guarded by step

	mu     sync.Mutex
	of     map[string]*atomic.Uint64 // by queue; guarded by mu
	timer  *time.Timer               // guarded by mu
	closed bool                      // guarded by mu
}

func newPushes(db *redisdb.DB) *pushes {
	p := &pushes{db: db, of: map[string]*atomic.Uint64{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.tally = p.newTally()
	return p
}

// queue is the counter of a queue.
func (p *pushes) queue(name string) *atomic.Uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[name]
	if n == nil {
		n = &atomic.Uint64{}
		p.of[name] = n
	}
	return n
}

// count counts what a push to the queue has stored.
func (q *Queue) count(results []Result) {
	stored := 0
	for i := range results {
		if results[i].Err == nil {
			stored++
		}
	}
	if stored == 0 {
		return
	}
	q.pushed.Add(uint64(stored))
	q.registry.pushes.arm()
}

// arm has the counts written in a while, if that is not so already.
func (p *pushes) arm() {
	if p.armed.Load() || !p.armed.CompareAndSwap(false, true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.timer = time.AfterFunc(p.tally.Begin(), p.write)
	}
}

// write writes the counts.
func (p *pushes) write() {
	p.step.Lock()
	defer p.step.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	p.tally.Step(p.ctx)
	p.armed.Store(false)
	if !p.tally.Idle() {
		p.arm()
	}
}

// close writes what is not written yet, for two seconds at most.
func (p *pushes) close() {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.stop()
	p.step.Lock()
	defer p.step.Unlock()
	if again || p.tally.Idle() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	p.tally.End(ctx)
}

func (p *pushes) newTally() *tally.Tally[pushed] {
	var now, asked time.Time // Redis's clock, and this process's when it said so
	return &tally.Tally[pushed]{
		Boot: rand.Text(),
		Read: p.read,
		Ask: func(ctx context.Context) (at time.Time, err error) {
			at, err = p.db.Time(ctx)
			if err == nil {
				now, asked = at, time.Now()
			}
			return at, err
		},
		Guess:  func() time.Time { return now.Add(time.Since(asked)) },
		Write:  tally.Into[pushed](p.db),
		Failed: func(error) {}, // it is written later; that Redis does not answer is what pushes say
	}
}

func (p *pushes) read() map[string]pushed {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]pushed, len(p.of))
	for name, n := range p.of {
		if so := n.Load(); so > 0 {
			all[name] = pushed{so}
		}
	}
	return all
}
