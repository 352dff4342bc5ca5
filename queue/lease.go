package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lease is an instance's proof of life in Redis. Once expired it can never be revived,
// because an instance's name is never used twice. What it says (Value) is the node's
// business; here it is bytes.
type Lease struct {
	c        *Client
	key      string
	Instance string
}

// ErrLeaseGone means that the lease has expired or was deleted, for good.
var ErrLeaseGone = errors.New("the lease is gone")

func (c *Client) leaseKey(instance string) string {
	return clusterKey(c.cfg.Cluster, "lease:"+instance)
}
func (c *Client) instancesKey() string { return clusterKey(c.cfg.Cluster, "instances") }

// TakeLease creates the lease of a new instance and puts it into the index of
// instances.
func (c *Client) TakeLease(ctx context.Context, instance string, value []byte, ttl time.Duration) (*Lease, error) {
	// The index first: an instance in it without a lease is merely dead, a lease
	// without an entry would be invisible.
	if err := c.rdb.ZAdd(ctx, c.instancesKey(), redis.Z{Score: 0, Member: instance}).Err(); err != nil && !redis.HasErrorPrefix(err, "OOM") {
		return nil, c.explain("register instance "+instance, err)
	}
	l := &Lease{c: c, key: c.leaseKey(instance), Instance: instance}
	reply, err := c.run(ctx, c.scripts.leaseNew, []string{l.key}, value, ttl.Milliseconds())
	if err != nil {
		return nil, err
	}
	if reply != int64(1) {
		return nil, fmt.Errorf("instance %s: its lease exists already; an instance's name must never be used twice", instance)
	}
	return l, nil
}

// Renew rewrites the lease and extends it by ttl from now. ErrLeaseGone is final.
func (l *Lease) Renew(ctx context.Context, value []byte, ttl time.Duration) error {
	reply, err := l.c.run(ctx, l.c.scripts.lease, []string{l.key}, value, ttl.Milliseconds())
	if err != nil {
		return err
	}
	if reply != int64(1) {
		return fmt.Errorf("instance %s: %w", l.Instance, ErrLeaseGone)
	}
	return nil
}

// Drop deletes the lease, so that others need not wait for it to expire.
func (l *Lease) Drop(ctx context.Context) error { return l.c.DropLease(ctx, l.Instance) }

// DropLease deletes the lease of an instance that is proven dead, and forgets the
// instance.
func (c *Client) DropLease(ctx context.Context, instance string) error {
	pipe := c.rdb.Pipeline()
	pipe.Del(ctx, c.leaseKey(instance))
	pipe.ZRem(ctx, c.instancesKey(), instance)
	_, err := pipe.Exec(ctx)
	return c.explain("drop the lease of "+instance, err)
}

// ReadLease returns what an instance's lease says, nil if there is none.
func (c *Client) ReadLease(ctx context.Context, instance string) ([]byte, error) {
	value, err := c.rdb.Get(ctx, c.leaseKey(instance)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, c.explain("read the lease of "+instance, err)
}

// Leases returns every instance of the index with what its lease says, nil for those
// whose lease is gone.
func (c *Client) Leases(ctx context.Context) (map[string][]byte, error) {
	instances, err := c.rdb.ZRange(ctx, c.instancesKey(), 0, -1).Result()
	if err != nil {
		return nil, c.explain("list instances", err)
	}
	leases := make(map[string][]byte, len(instances))
	if len(instances) == 0 {
		return leases, nil
	}
	pipe := c.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(instances))
	for i, instance := range instances {
		cmds[i] = pipe.Get(ctx, c.leaseKey(instance))
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for i, instance := range instances {
		value, err := cmds[i].Bytes()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, c.explain("read the lease of "+instance, err)
		}
		leases[instance] = value
	}
	return leases, nil
}

// Time is Redis's clock.
func (c *Client) Time(ctx context.Context) (time.Time, error) {
	now, err := c.rdb.Time(ctx).Result()
	return now, c.explain("read the time", err)
}
