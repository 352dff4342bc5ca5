package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/process/sleep"
)

// hashSlots is the number of slots of a Redis Cluster.
const hashSlots = 16384

// openCluster starts a private Redis Cluster with the given number of masters, without replicas and persistence.
func openCluster(ctx context.Context, masters int) (*Server, error) {
	s := &Server{}
	var stops []func()
	s.stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
	var addresses []string
	for range masters {
		url, stop, err := startRedis(ctx, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		stops = append(stops, stop)
		if err := s.addMaster(ctx, url); err != nil {
			return nil, errors.Join(err, s.close())
		}
		addresses = append(addresses, s.masters[len(s.masters)-1].Options().Addr)
	}
	s.URL = "redis+cluster://" + strings.Join(addresses, ",")
	if err := formCluster(ctx, s.masters); err != nil {
		return nil, errors.Join(fmt.Errorf("form a Redis Cluster of %d masters: %w", masters, err), s.close())
	}
	opts := s.masters[0].Options()
	s.rdb = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addresses, Protocol: opts.Protocol, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: opts.ReadTimeout,
	})
	return s, nil
}

// formCluster spreads the slots evenly, makes the masters known to each other, and returns when each knows every slot.
func formCluster(ctx context.Context, masters []*redis.Client) error {
	for i, master := range masters {
		// A master must get its epoch before it knows another master. Later it cannot be set.
		if err := master.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		first, last := i*hashSlots/len(masters), (i+1)*hashSlots/len(masters)-1
		if err := master.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return err
		}
	}
	for _, master := range masters {
		for _, other := range masters {
			host, port, _ := strings.Cut(other.Options().Addr, ":")
			if err := master.ClusterMeet(ctx, host, port).Err(); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("it is not ready within 30 s"))
	defer cancel()
	for _, master := range masters {
		for !isReady(ctx, master, len(masters)) {
			if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// isReady reports whether a master knows the others and all slots.
func isReady(ctx context.Context, master *redis.Client, masters int) bool {
	info, err := master.ClusterInfo(ctx).Result()
	for _, line := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", hashSlots), fmt.Sprintf("cluster_known_nodes:%d", masters)} {
		if err != nil || !strings.Contains(info, line+"\r\n") {
			return false
		}
	}
	return true
}
