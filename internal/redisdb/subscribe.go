package redisdb

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Subscription is a connection that listens to channels. When it breaks, the next Receive
// makes a new one with the same channels.
type Subscription struct{ pubsub *redis.PubSub }

// News is what a subscription got.
type News struct {
	Channel   string
	Confirmed bool // no message: Redis has confirmed the subscription
	Payload   string
}

// Subscribe builds a subscription without channels.
func (db *DB) Subscribe(ctx context.Context) *Subscription {
	return &Subscription{db.rdb.Subscribe(ctx)}
}

// Add asks for channels; the confirmations come as news.
func (s *Subscription) Add(ctx context.Context, channels ...string) error {
	return s.pubsub.Subscribe(ctx, channels...)
}

// Remove gives channels up.
func (s *Subscription) Remove(ctx context.Context, channels ...string) error {
	return s.pubsub.Unsubscribe(ctx, channels...)
}

// Receive waits for news, which may be empty: then it is the answer to a Ping, or tells
// that a channel was given up.
func (s *Subscription) Receive(ctx context.Context, patience time.Duration) (News, error) {
	msg, err := s.pubsub.ReceiveTimeout(ctx, patience)
	if err != nil {
		return News{}, err
	}
	switch m := msg.(type) {
	case *redis.Message:
		return News{Channel: m.Channel, Payload: m.Payload}, nil
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			return News{Channel: m.Channel, Confirmed: true}, nil
		}
	}
	return News{}, nil
}

// Ping asks for a sign of life.
func (s *Subscription) Ping(ctx context.Context) error { return s.pubsub.Ping(ctx) }

// Close ends it. It may be called twice.
func (s *Subscription) Close() error { return s.pubsub.Close() }

// Listen is Add that waits for the confirmation.
func (s *Subscription) Listen(ctx context.Context, channel string, patience time.Duration) error {
	if err := s.Add(ctx, channel); err != nil {
		return err
	}
	_, err := s.Receive(ctx, patience)
	return err
}

// TimedOut reports whether err, of a Receive, says that nothing came.
func TimedOut(err error) bool {
	timeout, ok := err.(interface{ Timeout() bool })
	return ok && timeout.Timeout()
}

// ErrClosed says that the connections were given back.
var ErrClosed = redis.ErrClosed

// Closed reports whether err says so.
func Closed(err error) bool { return errors.Is(err, ErrClosed) }

// Publish sends a message and returns how many listen.
//
// A master of a Redis Cluster passes messages on to the others, and counts only those who
// listen to it. So all are asked; a message may arrive several times.
func (db *DB) Publish(ctx context.Context, channel, text string) (listeners int, err error) {
	var sum atomic.Int64
	err = db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		n, err := master.rdb.Publish(ctx, channel, text).Result()
		sum.Add(n)
		return err
	})
	return int(sum.Load()), err
}
