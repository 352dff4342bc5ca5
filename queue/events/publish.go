package events

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

const (
	publishEvery = 100 * time.Millisecond
	maxMessage   = 64 << 10 // bytes of a message, but for one event that is longer
)

// Publisher tells listeners what happens in this process. Its methods may be called at once.
type Publisher struct {
	// Publish sends a message to those who listen to a queue, "" for those who listen to all.
	Publish func(ctx context.Context, queue string, message []byte) error

	wanted atomic.Pointer[map[string]bool] // by queue, "" for all; nil: nobody listens
	wake   chan struct{}                   // somebody listens

	mu  sync.Mutex // guards out
	out map[string]*message
}

// message is what was not sent yet.
type message struct {
	instance string
	text     []byte
	missed   int
}

// NewPublisher makes one to which nobody listens.
func NewPublisher(publish func(ctx context.Context, queue string, message []byte) error) *Publisher {
	return &Publisher{Publish: publish, wake: make(chan struct{}, 1), out: map[string]*message{}}
}

// Want takes in to which queues somebody listens, "" for all of them.
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

// Wanted reports whether somebody listens to a queue. It costs next to nothing.
func (p *Publisher) Wanted(queue string) bool {
	wanted := p.wanted.Load()
	return wanted != nil && ((*wanted)[""] || (*wanted)[queue])
}

// Runs tells of handler calls that have ended, on a shard of a queue.
func (p *Publisher) Runs(instance, queue string, shard int, runs []journal.Run) {
	p.tell(instance, queue, len(runs), func(room int) (text []byte, fit int) {
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

// Recovered tells of jobs that are queued again.
func (p *Publisher) Recovered(instance, queue string, shard int, r Recovery) {
	p.tell(instance, queue, 1, func(int) ([]byte, int) { return appendRecovery(nil, queue, shard, &r), 1 })
}

// tell adds events to the messages of those who want them. make makes their text, as many of them as the room allows, and
// says how many these are.
func (p *Publisher) tell(instance, queue string, n int, make func(room int) (text []byte, fit int)) {
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

// Run sends what there is until ctx ends. It waits where nobody listens.
func (p *Publisher) Run(ctx context.Context) error {
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		p.send(ctx)
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

// send sends what there is. A message that Redis did not take is missed by all: events are not kept.
func (p *Publisher) send(ctx context.Context) {
	p.mu.Lock()
	out := p.out
	p.out = map[string]*message{}
	p.mu.Unlock()
	for queue, m := range out {
		text := append(appendHead(nil, m.missed, m.instance), m.text...)
		_ = p.Publish(ctx, queue, text) // an outage of Redis is told by all else
	}
}

// Interest finds out to which of some queues somebody listens, "" among them if to all.
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

// Into is what sends messages by a connection.
func Into(db *redisdb.DB) func(context.Context, string, []byte) error {
	return func(ctx context.Context, queue string, text []byte) error {
		_, err := db.Do(ctx, "publish events", "PUBLISH", db.Keys.Events(queue), text)
		return err
	}
}
