package protocol

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/lowkiq/lowkiq/internal/store/daycounts"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// pushCounts counts the payloads that a client's pushes have stored or merged, for the figures of days. It
// counts answers of Redis. The first push starts a goroutine that writes the counts, so a push costs an
// addition and never waits for Redis.
type pushCounts struct {
	tally daycounts.Tally
	start sync.Once

	mu      sync.Mutex
	ctx     context.Context // ends when the client is closed
	stop    context.CancelFunc
	writing sync.WaitGroup            // guarded by mu, except for Wait
	byQueue map[string]*atomic.Uint64 // guarded by mu
}

func newPushCounts(db *redisdb.DB) *pushCounts {
	p := &pushCounts{byQueue: map[string]*atomic.Uint64{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.tally = daycounts.Tally{
		Read: p.readCounts, Time: db.Time, Write: daycounts.Into(db),
		Failed: func(error) {}, // the tally tries again, and pushes report that Redis does not answer
	}
	return p
}

// counterOf returns the counter of a queue.
func (p *pushCounts) counterOf(name string) *atomic.Uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.byQueue[name]
	if n == nil {
		n = &atomic.Uint64{}
		p.byQueue[name] = n
	}
	return n
}

// countStored counts the payloads that a push to the queue has stored.
func (q *Queue) countStored(results []Result) {
	stored := 0
	for i := range results {
		if results[i].Err == nil {
			stored++
		}
	}
	if stored > 0 {
		q.storedCount.Add(uint64(stored))
		q.registry.pushCounts.start.Do(q.registry.pushCounts.startWriting)
	}
}

// startWriting starts to write the counts.
func (p *pushCounts) startWriting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() == nil {
		p.writing.Go(func() { p.tally.Run(p.ctx) })
	}
}

// close writes the last counts, which takes at most four seconds.
func (p *pushCounts) close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.writing.Wait()
}

// readCounts returns the counts by queue.
func (p *pushCounts) readCounts() map[string]daycounts.Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]daycounts.Counts, len(p.byQueue))
	for name, n := range p.byQueue {
		all[name] = daycounts.Counts{daycounts.Pushed: float64(n.Load())}
	}
	return all
}
