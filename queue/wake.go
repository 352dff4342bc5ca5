package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Wake is news of a shard.
type Wake struct {
	Shard lowkiq.Shard
	// Confirmed: Redis has confirmed the subscription. Whoever was not subscribed
	// before should look once whether something is due.
	Confirmed bool
	// Lost: the connection broke; news may have been missed until the next Confirmed.
	// Shard is empty: it concerns all.
	Lost bool
	// Due is when something is due, by Redis's clock; zero is now.
	Due time.Time
	// Wanted is the fence of the claim that another instance waits for, 0 otherwise.
	Wanted int64
	// Drain is "on" if somebody asks this node to give its shards away, "off" if it may
	// take some again, "" otherwise.
	Drain string
}

// Wakes listens for pushes to shards: a message comes when a shard goes from nothing
// due to something due, or gets an earlier due time than its earliest. It is a hint;
// polling catches what it misses.
type Wakes struct {
	c      *Client
	pubsub *redis.PubSub
	mail   string // channel of messages to the instance itself

	mu     sync.Mutex
	shards map[string]lowkiq.Shard // by channel; guarded by mu
}

// NewWakes builds a listener for an instance; Run makes it listen. Besides the news of
// shards it hears what others have to say to the instance.
func (c *Client) NewWakes(ctx context.Context, instance string) *Wakes {
	return &Wakes{c: c, pubsub: c.rdb.Subscribe(ctx), mail: c.mailChannel(instance), shards: map[string]lowkiq.Shard{}}
}

func (c *Client) mailChannel(instance string) string {
	return clusterKey(c.cfg.Cluster, "to:"+instance)
}

// Add subscribes to shards. The confirmation arrives as a Wake.
func (w *Wakes) Add(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		w.shards[s.keys.wake] = s.Shard
		channels = append(channels, s.keys.wake)
	}
	w.mu.Unlock()
	return w.c.explain("subscribe", w.pubsub.Subscribe(ctx, channels...))
}

// Remove ends subscriptions.
func (w *Wakes) Remove(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		delete(w.shards, s.keys.wake)
		channels = append(channels, s.keys.wake)
	}
	w.mu.Unlock()
	err := w.pubsub.Unsubscribe(ctx, channels...)
	if errors.Is(err, redis.ErrClosed) {
		return nil // Run has ended, and all subscriptions with it
	}
	return w.c.explain("unsubscribe", err)
}

// Silence after which the connection is tested, and pause between attempts to get a
// new one.
const (
	wakeSilence = 30 * time.Second
	wakeRetry   = 250 * time.Millisecond
)

// Run delivers news until ctx ends. tell must not block for long.
func (w *Wakes) Run(ctx context.Context, tell func(Wake)) error {
	defer w.pubsub.Close()
	if err := w.pubsub.Subscribe(ctx, w.mail); err != nil && ctx.Err() == nil {
		tell(Wake{Lost: true}) // the next connection subscribes it
	}
	stop := context.AfterFunc(ctx, func() { w.pubsub.Close() }) //nolint:errcheck // unblocks Receive
	defer stop()
	for {
		msg, err := w.pubsub.ReceiveTimeout(ctx, wakeSilence)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if err := w.afterError(ctx, err, tell); err != nil {
				return err
			}
		default:
			w.deliver(msg, tell)
		}
	}
}

// afterError tests a silent connection and waits a moment after a broken one, which
// the next receive replaces, subscriptions included.
func (w *Wakes) afterError(ctx context.Context, err error, tell func(Wake)) error {
	if errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("wakes: %w", err)
	}
	if timeout, ok := err.(interface{ Timeout() bool }); ok && timeout.Timeout() {
		if w.pubsub.Ping(ctx) == nil {
			return nil
		}
	}
	tell(Wake{Lost: true})
	select {
	case <-ctx.Done():
	case <-time.After(wakeRetry):
	}
	return nil
}

func (w *Wakes) deliver(msg any, tell func(Wake)) {
	switch m := msg.(type) {
	case *redis.Subscription:
		if shard, ok := w.shard(m.Channel); ok && m.Kind == "subscribe" {
			tell(Wake{Shard: shard, Confirmed: true})
		}
	case *redis.Message:
		if m.Channel == w.mail {
			tell(decodeMail(m.Payload))
		} else if shard, ok := w.shard(m.Channel); ok {
			tell(decodeWake(shard, m.Payload))
		}
	}
}

func (w *Wakes) shard(channel string) (lowkiq.Shard, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shard, ok := w.shards[channel]
	return shard, ok
}

// decodeMail reads "wanted <queue> <index> <fence>" or "drain on|off".
func decodeMail(payload string) (wake Wake) {
	words := strings.Fields(payload)
	switch {
	case len(words) == 4 && words[0] == "wanted":
		wake.Shard.Queue = words[1]
		wake.Shard.Index, _ = strconv.Atoi(words[2])
		wake.Wanted, _ = strconv.ParseInt(words[3], 10, 64)
	case len(words) == 2 && words[0] == "drain":
		wake.Drain = words[1]
	}
	return wake
}

// decodeWake reads "0" (due now) or a due time in us.
func decodeWake(shard lowkiq.Shard, payload string) Wake {
	wake := Wake{Shard: shard}
	if us, err := strconv.ParseInt(payload, 10, 64); err == nil && us > 0 {
		wake.Due = time.UnixMicro(us)
	}
	return wake
}

// Want tells the holder of a shard's claim that another instance waits for it; a live
// holder that does not run the shard releases exactly that fence.
func (s *Shard) Want(ctx context.Context, holder Owner) error {
	text := fmt.Sprintf("wanted %s %d %d", s.Queue, s.Index, holder.Fence)
	err := s.c.rdb.Publish(ctx, s.c.mailChannel(holder.Instance), text).Err()
	return s.c.explain("want "+s.String(), err)
}

// Drain asks an instance to give its shards away (on), or to take some again. heard is
// false if it does not listen.
func (c *Client) Drain(ctx context.Context, instance string, on bool) (heard bool, err error) {
	text := "drain off"
	if on {
		text = "drain on"
	}
	n, err := c.rdb.Publish(ctx, c.mailChannel(instance), text).Result()
	return n > 0, c.explain("drain "+instance, err)
}

// Peeked is what a look at a shard saw.
type Peeked struct {
	Ready bool      // something is due now
	Next  time.Time // due time of the next scheduled or retried job; zero if there is none
}

// Peek looks whether anything is due, for many shards at once: one command per idle
// shard. It changes nothing.
func (c *Client) Peek(ctx context.Context, shards ...*Shard) ([]Peeked, error) {
	pipe := c.rdb.Pipeline()
	for _, s := range shards {
		pipe.Exists(ctx, s.keys.ready, s.keys.suspects, s.keys.due, s.keys.retry)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, c.explain("peek", err)
	}
	seen := make([]Peeked, len(shards))
	for i, s := range shards {
		if cmds[i].(*redis.IntCmd).Val() == 0 {
			continue
		}
		if seen[i], err = c.look(ctx, s); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// look peeks at a shard that holds something.
func (c *Client) look(ctx context.Context, s *Shard) (Peeked, error) {
	pipe := c.rdb.Pipeline()
	ready := pipe.Exists(ctx, s.keys.ready, s.keys.suspects)
	due := pipe.ZRangeWithScores(ctx, s.keys.due, 0, 0)
	retry := pipe.ZRangeWithScores(ctx, s.keys.retry, 0, 0)
	if _, err := pipe.Exec(ctx); err != nil {
		return Peeked{}, c.explain("peek at "+s.String(), err)
	}
	p := Peeked{Ready: ready.Val() > 0}
	for _, z := range slices.Concat(due.Val(), retry.Val()) {
		if at := time.UnixMicro(int64(z.Score)); p.Next.IsZero() || at.Before(p.Next) {
			p.Next = at
		}
	}
	return p, nil
}
