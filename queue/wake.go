package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Wake is news of a shard.
type Wake struct {
	Shard lowkiq.Shard
	// Confirmed: Redis has confirmed the subscription. A caller that was not subscribed
	// before should look once whether something is due.
	Confirmed bool
	// Lost: the connection broke; news may have been missed until the next Confirmed.
	// Shard is empty: it concerns all.
	Lost bool
	// Parked: something was pushed to an id in flight. It is due when the flight ends.
	Parked bool
	// Due is when something is due, by Redis's clock; zero is now.
	Due time.Time
	// Wanted is the fence of the claim that another instance waits for, 0 otherwise.
	Wanted int64
	// Drain is "on" if an operator asks this node to give its shards away, "off" if it may
	// take some again, "" otherwise.
	Drain string
	// Asked is the question of a process that wants to know where this node has an id; nil
	// otherwise.
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
	pubsub *redisdb.Subscription   // replaced when it answers no more
	shards map[string]lowkiq.Shard // by channel
}

// NewWakes builds a listener for an instance; Run makes it listen. Besides the news of
// shards it hears what others have to say to the instance.
func (c *Client) NewWakes(ctx context.Context, instance string) *Wakes {
	return &Wakes{c: c, mail: c.db.Keys.To(instance), silence: wakeSilence, pubsub: c.db.Subscribe(ctx), shards: map[string]lowkiq.Shard{}}
}

// Add subscribes to shards. The confirmation arrives as a Wake.
func (w *Wakes) Add(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		w.shards[s.keys.Wake] = s.Shard
		channels = append(channels, s.keys.Wake)
	}
	pubsub := w.pubsub
	w.mu.Unlock()
	return w.c.db.Explain("subscribe", pubsub.Add(ctx, channels...))
}

// Remove ends subscriptions.
func (w *Wakes) Remove(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		delete(w.shards, s.keys.Wake)
		channels = append(channels, s.keys.Wake)
	}
	pubsub := w.pubsub
	w.mu.Unlock()
	err := pubsub.Remove(ctx, channels...)
	if redisdb.Closed(err) {
		return nil // all subscriptions have ended with it, and the next connection has not these
	}
	return w.c.db.Explain("unsubscribe", err)
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
	if err := w.current().Add(ctx, w.mail); err != nil && ctx.Err() == nil {
		tell(Wake{Lost: true}) // the next connection subscribes it
	}
	stop := context.AfterFunc(ctx, w.close) // unblocks the receive
	defer stop()
	wait := w.silence
	for {
		news, err := w.current().Receive(ctx, wait)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait = w.silence
			w.deliver(news, tell)
		case redisdb.TimedOut(err) && wait == w.silence && w.current().Ping(ctx) == nil:
			wait = w.c.cfg.Timeout // for the answer
		case redisdb.Closed(err):
			return fmt.Errorf("wakes: %w", err)
		default:
			wait = w.silence
			w.lost(ctx, err, tell)
		}
	}
}

// lost waits a moment after a broken connection, which the next receive replaces,
// subscriptions included. One that is merely silent must be given up first: the network
// may have forgotten it without telling.
func (w *Wakes) lost(ctx context.Context, err error, tell func(Wake)) {
	tell(Wake{Lost: true})
	if redisdb.TimedOut(err) {
		w.renew(ctx)
	}
	select {
	case <-ctx.Done():
	case <-time.After(wakeRetry):
	}
}

func (w *Wakes) current() *redisdb.Subscription {
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
	w.pubsub = w.c.db.Subscribe(ctx)
	next := w.pubsub
	w.mu.Unlock()
	if ctx.Err() != nil {
		next.Close() // nothing else closes it any more
		return
	}
	next.Add(ctx, channels...) //nolint:errcheck // the next receive tries again
}

func (w *Wakes) deliver(news redisdb.News, tell func(Wake)) {
	if news.Channel == w.mail {
		if !news.Confirmed {
			tell(w.c.decodeMail(news.Payload))
		}
	} else if shard, ok := w.shard(news.Channel); ok && news.Confirmed {
		tell(Wake{Shard: shard, Confirmed: true})
	} else if ok {
		tell(decodeWake(shard, news.Payload))
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

// decodeWake reads "0" (due now), "-1" (pushed to an id in flight) or a due time in us.
func decodeWake(shard lowkiq.Shard, payload string) Wake {
	wake := Wake{Shard: shard}
	us, _ := strconv.ParseInt(payload, 10, 64)
	if wake.Parked = us < 0; us > 0 {
		wake.Due = time.UnixMicro(us)
	}
	return wake
}

// RequestRelease tells the holder of a shard's claim that another instance waits for it; a live
// holder that does not run the shard releases exactly that fence.
func (s *Shard) RequestRelease(ctx context.Context, holder Owner) error {
	text := fmt.Sprintf("wanted %s %d %d", s.Queue, s.Index, holder.Fence)
	_, err := s.registry.db.Do(ctx, "want "+s.String(), "PUBLISH", s.registry.db.Keys.To(holder.Instance), text)
	return err
}

// Drain asks an instance to give its shards away (on), or to take some again. heard is
// false if it does not listen.
func (c *Client) Drain(ctx context.Context, instance string, on bool) (heard bool, err error) {
	text := "drain off"
	if on {
		text = "drain on"
	}
	n, err := c.db.Publish(ctx, c.db.Keys.To(instance), text)
	if n > 0 {
		return true, nil
	}
	return false, c.db.Explain("drain "+instance, err)
}

// Due is what a look at a shard saw.
type Due struct {
	Ready bool      // something is due now
	Next  time.Time // due time of the next scheduled or retried job; zero if there is none
}

// PeekDue looks whether anything is due, for many shards at once: one command per idle
// shard. It changes nothing.
func (c *Client) PeekDue(ctx context.Context, shards ...*Shard) ([]Due, error) {
	cmds := make([]redisdb.Cmd, len(shards))
	for i, s := range shards {
		cmds[i] = redisdb.Cmd{"EXISTS", s.keys.Ready, s.keys.Suspects, s.keys.Due, s.keys.Retry}
	}
	replies, err := c.db.Pipeline(ctx, "peek", cmds...)
	if err != nil {
		return nil, err
	}
	seen := make([]Due, len(shards))
	var busy []int // indexes of shards that hold something
	for i := range shards {
		if redisdb.Int(replies[i]) > 0 {
			busy = append(busy, i)
		}
	}
	return seen, c.look(ctx, shards, busy, seen)
}

// look peeks at the shards that hold something, in one round trip.
func (c *Client) look(ctx context.Context, shards []*Shard, busy []int, seen []Due) error {
	var cmds []redisdb.Cmd
	for _, i := range busy {
		k := &shards[i].keys
		cmds = append(cmds, redisdb.Cmd{"EXISTS", k.Ready, k.Suspects},
			redisdb.Cmd{"ZRANGE", k.Due, 0, 0, "WITHSCORES"}, redisdb.Cmd{"ZRANGE", k.Retry, 0, 0, "WITHSCORES"})
	}
	replies, err := c.db.Pipeline(ctx, "peek", cmds...)
	if err != nil {
		return err
	}
	for n, i := range busy {
		seen[i].Ready = redisdb.Int(replies[3*n]) > 0
		for _, first := range replies[3*n+1 : 3*n+3] {
			list := redisdb.List(first)
			if len(list) < 2 {
				continue
			}
			score, _ := redisdb.Score(list[1])
			if at := time.UnixMicro(int64(score)); seen[i].Next.IsZero() || at.Before(seen[i].Next) {
				seen[i].Next = at
			}
		}
	}
	return nil
}
