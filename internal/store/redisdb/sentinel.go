package redisdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Sentinels are servers of their own. They have their own users, and may have forgotten the master
// or never known it.

// sentinels connects to the configured sentinels.
type sentinels struct{ opts *redis.UniversalOptions }

// optionsFor returns the options for a connection to a sentinel.
func (s *sentinels) optionsFor(addr string) *redis.Options {
	one := s.opts.Simple()
	one.Addr, one.DB, one.PoolSize = addr, 0, 1
	one.Username, one.Password = s.opts.SentinelUsername, s.opts.SentinelPassword
	return one
}

// knownMaster replaces the answer nil of the sentinels, which means an unknown master. Otherwise it
// would be taken for the nil of a missing key.
type knownMaster struct{ name string }

func (k knownMaster) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if errors.Is(err, redis.Nil) {
			// It begins with "redis: ", so it counts as transient, because sentinels may still learn of the master.
			return nil, fmt.Errorf("redis: no sentinel that answers knows a master %q", k.name)
		}
		return conn, err
	}
}

func (knownMaster) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (knownMaster) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (db *DB) checkSentinelUser(ctx context.Context) error {
	if db.checkSentinels == nil {
		return nil
	}
	return db.checkSentinels(ctx)
}

// checkUser returns an error if a sentinel does not permit its user everything that the client
// does. It ignores sentinels that do not answer.
func (s *sentinels) checkUser(ctx context.Context) error {
	errs := make([]error, len(s.opts.Addrs))
	var work sync.WaitGroup
	for i, addr := range s.opts.Addrs {
		work.Go(func() { errs[i] = s.checkOne(ctx, addr) })
	}
	work.Wait()
	return errors.Join(errs...)
}

// checkOne tries what go-redis does on a sentinel. It asks for the master and the other sentinels,
// sends a PING, and listens for a new master.
func (s *sentinels) checkOne(ctx context.Context, addr string) error {
	sentinel := redis.NewSentinelClient(s.optionsFor(addr))
	defer sentinel.Close()
	refused := refusals{}
	refused.addError("SENTINEL GET-MASTER-ADDR-BY-NAME", sentinel.GetMasterAddrByName(ctx, s.opts.MasterName).Err())
	refused.addError("SENTINEL SENTINELS", sentinel.Sentinels(ctx, s.opts.MasterName).Err())
	refused.addError("PING", sentinel.Ping(ctx).Err())
	for _, channel := range []string{"+switch-master", "+replica-reconf-done"} {
		listener := &Subscription{sentinel.Subscribe(ctx)}
		refused.addSubscribe(channel, listener.Listen(ctx, channel, s.opts.ReadTimeout))
		_ = listener.Close()
	}
	return refused.asError("sentinel " + addr)
}
