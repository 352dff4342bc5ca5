package events

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

const (
	publishEvery = 100 * time.Millisecond
	maxMessage   = 64 << 10 // bytes of a message, unless a single event is longer
)

// Publisher publishes the events of this process. Its methods may be called concurrently.
type Publisher struct {
	// Publish sends a message to the listeners of a queue, or of all queues if queue is "".
	Publish func(ctx context.Context, queue string, message []byte) error

	wanted atomic.Pointer[map[string]bool] // by queue, "" for all; nil if nobody listens
	wake   chan struct{}                   // signals that somebody listens

	mu  sync.Mutex // guards out
	out map[string]*message
}

// message is the unsent events for the listeners of a queue.
type message struct {
	instance string
	text     []byte
	missed   int
}

// NewPublisher returns a publisher without listeners.
func NewPublisher(publish func(ctx context.Context, queue string, message []byte) error) *Publisher {
	return &Publisher{Publish: publish, wake: make(chan struct{}, 1), out: map[string]*message{}}
}

// Want sets the queues that somebody listens to; "" stands for all queues.
func (p *Publisher) Want(queues ...string) {
	if len(queues) == 0 {
		p.wanted.Store(nil)
		return
	}
	wanted := make(map[string]bool, len(queues))
	for _, name := range queues {
		wanted[name] = true
	}
	if p.wanted.Swap(&wanted) == nil {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// Wanted reports whether somebody listens to a queue. It is very cheap.
func (p *Publisher) Wanted(queue string) bool {
	wanted := p.wanted.Load()
	return wanted != nil && ((*wanted)[""] || (*wanted)[queue])
}

// Runs publishes handler calls that have ended on a shard of a queue.
func (p *Publisher) Runs(instance, queue string, shard int, runs []journal.Run) {
	p.addEvents(instance, queue, len(runs), func(room int) (text []byte, fit int) {
		var lines []byte
		for i := range runs {
			if room < len(lines) {
				break
			}
			lines = runs[i].Append(lines)
			fit++
		}
		return appendRuns(nil, queue, shard, lines), fit
	})
}

// Recovered publishes that jobs were queued again.
func (p *Publisher) Recovered(instance, queue string, shard int, r Recovery) {
	p.addEvents(instance, queue, 1, func(int) ([]byte, int) { return appendRecovery(nil, queue, shard, &r), 1 })
}

// addEvents adds events to the messages for the listeners of the queue and of all queues. make
// writes as many of the events as fit into room bytes and returns how many these are.
func (p *Publisher) addEvents(instance, queue string, n int, make func(room int) (text []byte, fit int)) {
	wanted := p.wanted.Load()
	if wanted == nil || n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range []string{"", queue} {
		if !(*wanted)[name] {
			continue
		}
		m := p.out[name]
		if m == nil {
			m = &message{}
			p.out[name] = m
		}
		m.instance = instance
		room := maxMessage - len(m.text)
		if room <= 0 {
			m.missed += n
			continue
		}
		text, fit := make(room)
		m.text, m.missed = append(m.text, text...), m.missed+n-fit
	}
}

// Run sends events until ctx ends. It sleeps while nobody listens.
func (p *Publisher) Run(ctx context.Context) error {
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		p.sendMessages(ctx)
		if p.wanted.Load() == nil {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
				ticker.Reset(publishEvery)
			}
		}
	}
}

// sendMessages sends the unsent events. Listeners miss a message that Redis does not accept,
// because events are not kept.
func (p *Publisher) sendMessages(ctx context.Context) {
	p.mu.Lock()
	out := p.out
	p.out = map[string]*message{}
	p.mu.Unlock()
	for queue, m := range out {
		text := append(appendHead(nil, m.missed, m.instance), m.text...)
		_ = p.Publish(ctx, queue, text) // everything else reports an outage of Redis
	}
}

// Interest returns the queues that somebody listens to, with "" if somebody listens to all.
func Interest(ctx context.Context, db *redisdb.DB, queues []string) (wanted []string, err error) {
	names := append([]string{""}, queues...)
	cmd := redisdb.Cmd{"MGET"}
	for _, name := range names {
		cmd = append(cmd, db.Keys.Listen(name))
	}
	reply, err := db.Do(ctx, "look who listens", cmd...)
	if err != nil {
		return nil, err
	}
	for i, value := range redisdb.List(reply) {
		if value != nil && i < len(names) {
			wanted = append(wanted, names[i])
		}
	}
	return wanted, nil
}

// Into returns a function that publishes messages over a connection.
func Into(db *redisdb.DB) func(context.Context, string, []byte) error {
	return func(ctx context.Context, queue string, text []byte) error {
		_, err := db.Do(ctx, "publish events", "PUBLISH", db.Keys.Events(queue), text)
		return err
	}
}
