package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
// instances, with what identifies its process: that outlives the lease.
func (c *Client) TakeLease(ctx context.Context, instance string, identity, value []byte, ttl time.Duration) (*Lease, error) {
	l := &Lease{c: c, key: c.leaseKey(instance), Instance: instance}
	reply, err := c.run(ctx, c.scripts.leaseNew, []string{l.key, c.instancesKey()}, value, ttl.Milliseconds(), instance, identity)
	if err != nil {
		return nil, err
	}
	if reply != int64(1) {
		return nil, fmt.Errorf("instance %s: its lease exists already; an instance's name must never be used twice", instance)
	}
	return l, nil
}

// Renew rewrites the lease and extends it by ttl from now. ErrLeaseGone is final. It is
// one command; only a Redis out of memory, which refuses that, is asked by the script.
func (l *Lease) Renew(ctx context.Context, value []byte, ttl time.Duration) error {
	renewed, err := l.c.rdb.SetXX(ctx, l.key, value, ttl).Result()
	if says(err, "OOM") {
		var reply any
		reply, err = l.c.run(ctx, l.c.scripts.lease, []string{l.key}, value, ttl.Milliseconds())
		renewed = reply == int64(1)
	}
	if err != nil {
		return l.c.explain("lease", err)
	}
	if !renewed {
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
	pipe.HDel(ctx, c.instancesKey(), instance)
	_, err := pipe.Exec(ctx)
	return c.explain("drop the lease of "+instance, err)
}

// EndLease deletes the lease of an instance that is proven dead. The index keeps what
// identifies it, so that the proof can be repeated until nothing refers to it.
func (c *Client) EndLease(ctx context.Context, instance string) error {
	return c.explain("end the lease of "+instance, c.rdb.Del(ctx, c.leaseKey(instance)).Err())
}

// Instance is an entry of the index of instances.
type Instance struct {
	Name     string
	Identity []byte // what TakeLease was given; nil if the instance is not in the index
	Lease    []byte // what the lease says; nil if it is gone
}

// Instance reads one entry.
func (c *Client) Instance(ctx context.Context, name string) (Instance, error) {
	pipe := c.rdb.Pipeline()
	identity := pipe.HGet(ctx, c.instancesKey(), name)
	lease := pipe.Get(ctx, c.leaseKey(name))
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return Instance{}, c.explain("read instance "+name, err)
	}
	return instanceOf(name, identity, lease)
}

// instanceOf reads the commands' answers, nil for what is not there.
func instanceOf(name string, identity, lease *redis.StringCmd) (Instance, error) {
	i := Instance{Name: name}
	for _, part := range []struct {
		cmd  *redis.StringCmd
		into *[]byte
	}{{identity, &i.Identity}, {lease, &i.Lease}} {
		value, err := part.cmd.Bytes()
		if err != nil && !errors.Is(err, redis.Nil) {
			return i, fmt.Errorf("read instance %s: %w", name, err)
		}
		*part.into = value
	}
	return i, nil
}

// Index reads the index alone: names and identities, in order of their names, no leases.
func (c *Client) Index(ctx context.Context) ([]Instance, error) {
	index, err := c.rdb.HGetAll(ctx, c.instancesKey()).Result()
	if err != nil {
		return nil, c.explain("list instances", err)
	}
	instances := make([]Instance, 0, len(index))
	for _, name := range slices.Sorted(maps.Keys(index)) {
		instances = append(instances, Instance{Name: name, Identity: []byte(index[name])})
	}
	return instances, nil
}

// Instances reads the index and the leases of all that are in it.
func (c *Client) Instances(ctx context.Context) ([]Instance, error) {
	index, err := c.Index(ctx)
	if err != nil || len(index) == 0 {
		return index, err
	}
	g, err := c.Glance(ctx, index)
	return g.Instances, err
}

// LeasesLeft returns for how long the leases of instances last unless they are renewed; 0
// for one that is gone.
func (c *Client) LeasesLeft(ctx context.Context, instances ...Instance) ([]time.Duration, error) {
	pipe := c.rdb.Pipeline()
	answers := make([]*redis.DurationCmd, len(instances))
	for i, known := range instances {
		answers[i] = pipe.PTTL(ctx, c.leaseKey(known.Name))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, c.explain("read how long leases last", err)
	}
	left := make([]time.Duration, len(instances))
	for i, answer := range answers {
		left[i] = max(0, answer.Val())
	}
	return left, nil
}

// Reserve takes a node's name for a boot until the lease shows it, at most for ttl. It
// returns false if another boot has it. To repeat it does no harm: in a Redis Cluster go-redis
// does so by itself when an answer is lost.
func (c *Client) Reserve(ctx context.Context, node, boot string, ttl time.Duration) (bool, error) {
	key := clusterKey(c.cfg.Cluster, "name:"+node)
	taken, err := c.rdb.SetNX(ctx, key, boot, ttl).Result()
	if err != nil || taken {
		return taken, c.explain("reserve the name "+node, err)
	}
	holder, err := c.bytes(ctx, key, "read who has the name "+node)
	return string(holder) == boot, err
}

// Unreserve ends a reservation of this boot.
func (c *Client) Unreserve(ctx context.Context, node, boot string) error {
	_, err := c.run(ctx, c.scripts.clusterSwap, []string{clusterKey(c.cfg.Cluster, "name:"+node)}, boot, "")
	return err
}

// Time is Redis's clock.
func (c *Client) Time(ctx context.Context) (time.Time, error) {
	now, err := c.rdb.Time(ctx).Result()
	return now, c.explain("read the time", err)
}
