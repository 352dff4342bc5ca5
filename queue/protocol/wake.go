package protocol

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
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Wake is a message about a shard or to an instance, or a change of the connection.
type Wake struct {
	Shard lowkiq.Shard // empty if the wake does not concern a single shard
	// Confirmed means that Redis has confirmed the subscription to the shard. A caller that was not subscribed
	// before must look once whether the shard has due jobs.
	Confirmed bool
	// Lost means that the connection broke. Messages about any shard may be missed until the next
	// Confirmed.
	Lost bool
	// Parked means that a payload was pushed to an id in flight. It is due when the flight ends.
	Parked bool
	// Outgoing means that follow-ups of the shard wait to be delivered.
	Outgoing bool
	// Due is the time when a job is due, by Redis's clock; zero means now.
	Due time.Time
	// Wanted is the fence of a claim that another instance waits for, 0 in other messages.
	Wanted int64
	// Drain is "on" if an operator asks this node to give its shards away, and "off" if it may take shards
	// again. It is "" in other messages.
	Drain string
	// Asked asks where this node has an id, or asks it to end a run. It is nil in other messages.
	Asked *Question
}

// Wakes receives messages about pushes to shards. A message comes when a shard without due jobs gets a due job,
// or when its next due time becomes earlier. Messages are hints and may be lost. Polling finds the jobs that a
// lost message announced.
type Wakes struct {
	client  *Client
	mail    string        // channel of messages to the instance itself
	silence time.Duration // then the connection is tested

	mu     sync.Mutex              // guards the fields below
	pubsub *redisdb.Subscription   // replaced when it does not answer any more
	shards map[string]lowkiq.Shard // subscribed shards by channel
}

// NewWakes returns a listener for an instance. It listens when Run is called. It also receives messages to the
// instance itself.
func (c *Client) NewWakes(ctx context.Context, instance string) *Wakes {
	return &Wakes{client: c, mail: c.db.Keys.To(instance), silence: wakeSilence, pubsub: c.db.Subscribe(ctx), shards: map[string]lowkiq.Shard{}}
}

// Add subscribes to shards. The confirmation comes as a Wake.
func (w *Wakes) Add(ctx context.Context, shards ...*Shard) error {
	w.mu.Lock()
	channels := make([]string, 0, len(shards))
	for _, s := range shards {
		w.shards[s.keys.Wake] = s.Shard
		channels = append(channels, s.keys.Wake)
	}
	pubsub := w.pubsub
	w.mu.Unlock()
	return w.client.db.Explain("subscribe", pubsub.Add(ctx, channels...))
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
		return nil // the subscriptions have ended with the connection, and the next connection does not get them
	}
	return w.client.db.Explain("unsubscribe", err)
}

const (
	wakeSilence = 30 * time.Second       // silence before a connection is tested
	wakeRetry   = 250 * time.Millisecond // pause before a new connection
)

// Run calls tell for each message until ctx ends. tell must not block for long.
func (w *Wakes) Run(ctx context.Context, tell func(Wake)) error {
	defer w.close()
	if err := w.subscription().Add(ctx, w.mail); err != nil && ctx.Err() == nil {
		tell(Wake{Lost: true}) // the next connection subscribes it
	}
	stop := context.AfterFunc(ctx, w.close) // unblocks the receive
	defer stop()
	wait := w.silence
	for {
		news, err := w.subscription().Receive(ctx, wait)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait = w.silence
			w.deliverNews(news, tell)
		case redisdb.TimedOut(err) && wait == w.silence && w.subscription().Ping(ctx) == nil:
			wait = w.client.cfg.Timeout // for the answer to the ping
		case redisdb.Closed(err):
			return fmt.Errorf("wakes: %w", err)
		default:
			wait = w.silence
			w.waitAfterLoss(ctx, err, tell)
		}
	}
}

// waitAfterLoss reports a broken connection and waits a moment. The next receive replaces the connection and its
// subscriptions. The receive keeps a connection that only did not answer the ping, because the network may drop a
// connection silently. So waitAfterLoss replaces such a connection itself.
func (w *Wakes) waitAfterLoss(ctx context.Context, err error, tell func(Wake)) {
	tell(Wake{Lost: true})
	if redisdb.TimedOut(err) {
		w.reconnect(ctx)
	}
	select {
	case <-ctx.Done():
	case <-time.After(wakeRetry):
	}
}

func (w *Wakes) subscription() *redisdb.Subscription {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pubsub
}

func (w *Wakes) close() { w.subscription().Close() }

// reconnect replaces the connection and subscribes to all channels again.
func (w *Wakes) reconnect(ctx context.Context) {
	w.close()
	w.mu.Lock()
	channels := append(slices.Collect(maps.Keys(w.shards)), w.mail)
	w.pubsub = w.client.db.Subscribe(ctx)
	next := w.pubsub
	w.mu.Unlock()
	if ctx.Err() != nil {
		next.Close() // nothing else closes it any more
		return
	}
	next.Add(ctx, channels...) //nolint:errcheck // the next receive tries again
}

func (w *Wakes) deliverNews(news redisdb.News, tell func(Wake)) {
	if news.Channel == w.mail {
		if !news.Confirmed {
			tell(w.client.decodeMail(news.Payload))
		}
	} else if shard, ok := w.shardOf(news.Channel); ok && news.Confirmed {
		tell(Wake{Shard: shard, Confirmed: true})
	} else if ok {
		tell(decodeWake(shard, news.Payload))
	}
}

func (w *Wakes) shardOf(channel string) (lowkiq.Shard, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shard, ok := w.shards[channel]
	return shard, ok
}

// decodeMail reads a message to the instance: "wanted <queue> <index> <fence>", "drain on|off", or "where" and a
// question.
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

// decodeWake reads a message about a shard: "0" (due now), "-1" (pushed to an id in flight), "out" (follow-ups
// wait) or a due time in us.
func decodeWake(shard lowkiq.Shard, payload string) Wake {
	wake := Wake{Shard: shard, Outgoing: payload == "out"}
	us, _ := strconv.ParseInt(payload, 10, 64)
	if wake.Parked = us < 0; us > 0 {
		wake.Due = time.UnixMicro(us)
	}
	return wake
}

// RequestRelease tells the holder of a shard's claim that another instance waits for the shard. A live holder that
// does not run the shard releases the claim with exactly this fence.
func (s *Shard) RequestRelease(ctx context.Context, holder Owner) error {
	text := fmt.Sprintf("wanted %s %d %d", s.Queue, s.Index, holder.Fence)
	_, err := s.registry.db.Do(ctx, "want "+s.String(), "PUBLISH", s.registry.db.Keys.To(holder.Instance), text)
	return err
}

// Drain asks an instance to give its shards away, or with on = false to take shards again. heard reports whether
// the instance listens.
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

// Due says whether a shard has due jobs.
type Due struct {
	Ready bool      // a job is due now
	Next  time.Time // due time of the next scheduled or failed job; zero if there is none
}

// PeekDue reads whether shards have due jobs, with one command per empty shard. It changes nothing.
func (c *Client) PeekDue(ctx context.Context, shards ...*Shard) ([]Due, error) {
	cmds := make([]redisdb.Cmd, len(shards))
	for i, s := range shards {
		cmds[i] = redisdb.Cmd{"EXISTS", s.keys.Ready, s.keys.Suspects, s.keys.Urgent, s.keys.Due, s.keys.Retry}
	}
	replies, err := c.db.Pipeline(ctx, "peek", cmds...)
	if err != nil {
		return nil, err
	}
	seen := make([]Due, len(shards))
	var busy []int // indexes of shards that have waiting jobs
	for i := range shards {
		if redisdb.Int(replies[i]) > 0 {
			busy = append(busy, i)
		}
	}
	return seen, c.peekShards(ctx, shards, busy, seen)
}

// peekShards reads the due jobs of the shards with the indexes in busy, in one round trip.
func (c *Client) peekShards(ctx context.Context, shards []*Shard, busy []int, seen []Due) error {
	var cmds []redisdb.Cmd
	for _, i := range busy {
		k := &shards[i].keys
		cmds = append(cmds, redisdb.Cmd{"EXISTS", k.Ready, k.Suspects}, redisdb.Cmd{"ZCOUNT", k.Urgent, 0, "+inf"},
			redisdb.Cmd{"ZRANGE", k.Due, 0, 0, "WITHSCORES"}, redisdb.Cmd{"ZRANGE", k.Retry, 0, 0, "WITHSCORES"})
	}
	replies, err := c.db.Pipeline(ctx, "peek", cmds...)
	if err != nil {
		return err
	}
	for n, i := range busy {
		seen[i].Ready = redisdb.Int(replies[4*n])+redisdb.Int(replies[4*n+1]) > 0
		for _, first := range replies[4*n+2 : 4*n+4] {
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
