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

// pushes counts the payloads that a client's pushes store, and writes the counts every ten seconds, from the first one on, and
// when the client is closed. A push pays an addition, and nothing waits for Redis.
type pushes struct {
	db    *redisdb.DB
	begun atomic.Bool // or closed

	mu   sync.Mutex
	of   map[string]*atomic.Uint64 // by queue; guarded by mu
	stop context.CancelFunc        // guarded by mu; nil before the first push
	work sync.WaitGroup
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
	if p := q.registry.pushes; !p.begun.Load() {
		p.begin()
	}
}

// begin has the counts written from now on.
func (p *pushes) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun.Swap(true) {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.work.Go(func() { p.tally().Run(ctx) })
}

// close writes what is not written yet, for two seconds at most.
func (p *pushes) close() {
	p.mu.Lock()
	p.begun.Store(true)
	stop := p.stop
	p.mu.Unlock()
	if stop != nil {
		stop()
		p.work.Wait()
	}
}

func (p *pushes) tally() *tally.Tally[pushed] {
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
