package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	// Asked is the question of somebody who wants to know where this node has an id; nil otherwise.
	Asked *Question
}

// Wakes listens for pushes to shards: a message comes when a shard goes from nothing
// due to something due, or gets an earlier due time than its earliest. It is a hint;
// polling catches what it misses.
type Wakes struct {
	c       *Client
	mail    string        // channel of messages to the instance itself
	silence time.Duration // after which the connection is tested

	mu     sync.Mutex              // guards the fields below
	pubsub *redis.PubSub           // replaced when it answers no more
	shards map[string]lowkiq.Shard // by channel
}

// NewWakes builds a listener for an instance; Run makes it listen. Besides the news of
// shards it hears what others have to say to the instance.
func (c *Client) NewWakes(ctx context.Context, instance string) *Wakes {
	return &Wakes{c: c, mail: c.mailChannel(instance), silence: wakeSilence, pubsub: c.rdb.Subscribe(ctx), shards: map[string]lowkiq.Shard{}}
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
	pubsub := w.pubsub
	w.mu.Unlock()
	return w.c.explain("subscribe", pubsub.Subscribe(ctx, channels...))
}

// Remove ends subscriptions.
func (w *Wakes) Remove(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		delete(w.shards, s.keys.wake)
		channels = append(channels, s.keys.wake)
	}
	pubsub := w.pubsub
	w.mu.Unlock()
	err := pubsub.Unsubscribe(ctx, channels...)
	if errors.Is(err, redis.ErrClosed) {
		return nil // all subscriptions have ended with it, and the next connection has not these
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
	defer w.close()
	if err := w.current().Subscribe(ctx, w.mail); err != nil && ctx.Err() == nil {
		tell(Wake{Lost: true}) // the next connection subscribes it
	}
	stop := context.AfterFunc(ctx, w.close) // unblocks the receive
	defer stop()
	wait := w.silence
	for {
		msg, err := w.current().ReceiveTimeout(ctx, wait)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait = w.silence
			w.deliver(msg, tell)
		case silent(err) && wait == w.silence && w.current().Ping(ctx) == nil:
			wait = w.c.cfg.Timeout // for the answer
		case errors.Is(err, redis.ErrClosed):
			return fmt.Errorf("wakes: %w", err)
		default:
			wait = w.silence
			w.lost(ctx, err, tell)
		}
	}
}

func silent(err error) bool {
	timeout, ok := err.(interface{ Timeout() bool })
	return ok && timeout.Timeout()
}

// lost waits a moment after a broken connection, which the next receive replaces,
// subscriptions included. One that is merely silent must be given up first: the network
// may have forgotten it without telling.
func (w *Wakes) lost(ctx context.Context, err error, tell func(Wake)) {
	tell(Wake{Lost: true})
	if silent(err) {
		w.renew(ctx)
	}
	select {
	case <-ctx.Done():
	case <-time.After(wakeRetry):
	}
}

func (w *Wakes) current() *redis.PubSub {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pubsub
}

func (w *Wakes) close() { w.current().Close() }

// renew replaces the connection.
func (w *Wakes) renew(ctx context.Context) {
	w.close()
	w.mu.Lock()
	channels := append(slices.Collect(maps.Keys(w.shards)), w.mail)
	w.pubsub = w.c.rdb.Subscribe(ctx)
	next := w.pubsub
	w.mu.Unlock()
	if ctx.Err() != nil {
		next.Close() // nobody else may close it any more
		return
	}
	next.Subscribe(ctx, channels...) //nolint:errcheck // the next receive tries again
}

func (w *Wakes) deliver(msg any, tell func(Wake)) {
	switch m := msg.(type) {
	case *redis.Subscription:
		if shard, ok := w.shard(m.Channel); ok && m.Kind == "subscribe" {
			tell(Wake{Shard: shard, Confirmed: true})
		}
	case *redis.Message:
		if m.Channel == w.mail {
			tell(w.c.decodeMail(m.Payload))
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

// decodeMail reads "wanted <queue> <index> <fence>", "drain on|off" or "where" and a question.
func (c *Client) decodeMail(payload string) (wake Wake) {
	if wake.Asked = c.decodeQuestion(payload); wake.Asked != nil {
		return wake
	}
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
//
// A master of a Redis Cluster passes messages on to the others, and counts only those who
// listen to it. So all are asked; to hear it several times does no harm.
func (c *Client) Drain(ctx context.Context, instance string, on bool) (heard bool, err error) {
	text := "drain off"
	if on {
		text = "drain on"
	}
	var listeners atomic.Int64
	err = c.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		n, err := node.Publish(ctx, c.mailChannel(instance), text).Result()
		listeners.Add(n)
		return err
	})
	if heard = listeners.Load() > 0; heard {
		return true, nil
	}
	return false, c.explain("drain "+instance, err)
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
	var busy []int // indexes of shards that hold something
	for i := range shards {
		if cmds[i].(*redis.IntCmd).Val() > 0 {
			busy = append(busy, i)
		}
	}
	return seen, c.look(ctx, shards, busy, seen)
}

// look peeks at the shards that hold something, in one round trip.
func (c *Client) look(ctx context.Context, shards []*Shard, busy []int, seen []Peeked) error {
	if len(busy) == 0 {
		return nil
	}
	pipe := c.rdb.Pipeline()
	for _, i := range busy {
		k := shards[i].keys
		pipe.Exists(ctx, k.ready, k.suspects)
		pipe.ZRangeWithScores(ctx, k.due, 0, 0)
		pipe.ZRangeWithScores(ctx, k.retry, 0, 0)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return c.explain("peek", err)
	}
	for n, i := range busy {
		due, retry := cmds[3*n+1].(*redis.ZSliceCmd), cmds[3*n+2].(*redis.ZSliceCmd)
		seen[i].Ready = cmds[3*n].(*redis.IntCmd).Val() > 0
		for _, z := range slices.Concat(due.Val(), retry.Val()) {
			if at := time.UnixMicro(int64(z.Score)); seen[i].Next.IsZero() || at.Before(seen[i].Next) {
				seen[i].Next = at
			}
		}
	}
	return nil
}
