package redisdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Sentinels are servers of their own: they have their own users, and may have forgotten
// the master, or never known it.

// sentinels are those of the configuration.
type sentinels struct{ opts *redis.UniversalOptions }

// at is for a connection to one of them, instead of one to the master.
func (s *sentinels) at(addr string) *redis.Options {
	one := s.opts.Simple()
	one.Addr, one.DB, one.PoolSize = addr, 0, 1
	one.Username, one.Password = s.opts.SentinelUsername, s.opts.SentinelPassword
	return one
}

// knownMaster tells the sentinels' answer to an unknown master, nil, from Redis's answer
// to a key that is missing: one would be taken for the other.
type knownMaster struct{ name string }

func (k knownMaster) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if errors.Is(err, redis.Nil) {
			// "redis: " as go-redis says it, because they may yet hear of it.
			return nil, fmt.Errorf("redis: no sentinel that answers knows a master %q", k.name)
		}
		return conn, err
	}
}

func (knownMaster) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (knownMaster) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// check names what one of them does not let its user do. Those that do not answer are
// not its business. A nil one has nothing to check.
func (s *sentinels) check(ctx context.Context) error {
	if s == nil {
		return nil
	}
	errs := make([]error, len(s.opts.Addrs))
	var work sync.WaitGroup
	for i, addr := range s.opts.Addrs {
		work.Go(func() { errs[i] = s.checkOne(ctx, addr) })
	}
	work.Wait()
	return errors.Join(errs...)
}

// checkOne does what go-redis does: it asks for the master and the other sentinels, and
// listens for a new master on a connection that it pings.
func (s *sentinels) checkOne(ctx context.Context, addr string) error {
	sentinel := redis.NewSentinelClient(s.at(addr))
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
	return refused.err("sentinel " + addr)
}
