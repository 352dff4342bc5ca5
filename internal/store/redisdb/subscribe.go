package redisdb

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Subscription is a connection that listens to channels. If it breaks, the next Receive opens a new
// connection with the same channels.
type Subscription struct{ pubsub pubsub }

// pubsub is the part of a [redis.PubSub] that a Subscription needs; see Client.
type pubsub interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error)
	Ping(ctx context.Context, payload ...string) error
	Close() error
}

// News is something that a subscription has received.
type News struct {
	Channel   string
	Confirmed bool // not a message, but the confirmation of a subscription
	Payload   string
}

// Subscribe returns a subscription without channels. It is never inlined, because its body names a client type (see Client).
//
//go:noinline
func (db *DB) Subscribe(ctx context.Context) *Subscription {
	return &Subscription{db.rdb.(redis.UniversalClient).Subscribe(ctx)}
}

// Add subscribes to channels. The confirmations arrive as news.
func (s *Subscription) Add(ctx context.Context, channels ...string) error {
	return s.pubsub.Subscribe(ctx, channels...)
}

// Remove unsubscribes from channels.
func (s *Subscription) Remove(ctx context.Context, channels ...string) error {
	return s.pubsub.Unsubscribe(ctx, channels...)
}

// Receive waits for news, at most for patience. Empty news are the answer to a Ping or the confirmation
// of Remove.
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

// Ping asks the server to answer.
func (s *Subscription) Ping(ctx context.Context) error { return s.pubsub.Ping(ctx) }

// Close closes the connection. It may be called twice.
func (s *Subscription) Close() error { return s.pubsub.Close() }

// Listen subscribes to a channel and waits for the confirmation.
func (s *Subscription) Listen(ctx context.Context, channel string, patience time.Duration) error {
	if err := s.Add(ctx, channel); err != nil {
		return err
	}
	_, err := s.Receive(ctx, patience)
	return err
}

// TimedOut reports whether err, returned by Receive, means that nothing arrived.
func TimedOut(err error) bool {
	timeout, ok := err.(interface{ Timeout() bool })
	return ok && timeout.Timeout()
}

// ErrClosed means that the DB was closed.
var ErrClosed = redis.ErrClosed

// Closed reports whether err is ErrClosed.
func Closed(err error) bool { return errors.Is(err, ErrClosed) }

// Publish sends a message and returns the number of listeners.
//
// A master of a Redis Cluster passes messages on to the others, and counts only its own listeners.
// So Publish asks all masters, and a message may arrive several times.
func (db *DB) Publish(ctx context.Context, channel, text string) (listeners int, err error) {
	var sum atomic.Int64
	err = db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		n, err := master.rdb.Publish(ctx, channel, text).Result()
		sum.Add(n)
		return err
	})
	return int(sum.Load()), err
}
