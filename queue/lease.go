package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
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

// TakeLease creates the lease of a new instance and puts it into the index of
// instances, with what identifies its process: that outlives the lease.
func (c *Client) TakeLease(ctx context.Context, instance string, identity, value []byte, ttl time.Duration) (*Lease, error) {
	l := &Lease{c: c, key: c.db.Keys.Lease(instance), Instance: instance}
	reply, err := c.run(ctx, c.db.Scripts.LeaseNew, []string{l.key, c.db.Keys.Instances()}, value, ttl.Milliseconds(), instance, identity)
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
	reply, err := l.c.db.Do(ctx, "lease", "SET", l.key, value, "PX", ttl.Milliseconds(), "XX")
	renewed := reply != nil
	if redisdb.Says(err, "OOM") {
		reply, err = l.c.db.Run(ctx, l.c.db.Scripts.Lease, []string{l.key}, value, ttl.Milliseconds())
		renewed = reply == int64(1)
	}
	if err != nil {
		return err
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
	_, err := c.db.Pipeline(ctx, "drop the lease of "+instance,
		redisdb.Cmd{"DEL", c.db.Keys.Lease(instance)}, redisdb.Cmd{"HDEL", c.db.Keys.Instances(), instance})
	return err
}

// EndLease deletes the lease of an instance that is proven dead. The index keeps what
// identifies it, so that the proof can be repeated until nothing refers to it.
func (c *Client) EndLease(ctx context.Context, instance string) error {
	_, err := c.db.Do(ctx, "end the lease of "+instance, "DEL", c.db.Keys.Lease(instance))
	return err
}

// Instance is an entry of the index of instances.
type Instance struct {
	Name     string
	Identity []byte // what TakeLease was given; nil if the instance is not in the index
	Lease    []byte // what the lease says; nil if it is gone
}

// Instance reads one entry.
func (c *Client) Instance(ctx context.Context, name string) (Instance, error) {
	replies, err := c.db.Pipeline(ctx, "read instance "+name,
		redisdb.Cmd{"HGET", c.db.Keys.Instances(), name}, redisdb.Cmd{"GET", c.db.Keys.Lease(name)})
	if err != nil {
		return Instance{}, err
	}
	return Instance{Name: name, Identity: redisdb.Bytes(replies[0]), Lease: redisdb.Bytes(replies[1])}, nil
}

// Index reads the index alone: names and identities, in order of their names, no leases.
func (c *Client) Index(ctx context.Context) ([]Instance, error) {
	reply, err := c.db.Do(ctx, "list instances", "HGETALL", c.db.Keys.Instances())
	if err != nil {
		return nil, err
	}
	index := redisdb.Map(reply)
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
	cmds := make([]redisdb.Cmd, len(instances))
	for i, known := range instances {
		cmds[i] = redisdb.Cmd{"PTTL", c.db.Keys.Lease(known.Name)}
	}
	replies, err := c.db.Pipeline(ctx, "read how long leases last", cmds...)
	if err != nil {
		return nil, err
	}
	left := make([]time.Duration, len(instances))
	for i, reply := range replies {
		left[i] = time.Duration(max(0, redisdb.Int(reply))) * time.Millisecond
	}
	return left, nil
}

// Reserve takes a node's name for a boot until the lease shows it, at most for ttl. It
// returns false if another boot has it. To repeat it does no harm: in a Redis Cluster go-redis
// does so by itself when an answer is lost.
func (c *Client) Reserve(ctx context.Context, node, boot string, ttl time.Duration) (bool, error) {
	key := c.db.Keys.Name(node)
	taken, err := c.db.Do(ctx, "reserve the name "+node, "SET", key, boot, "PX", ttl.Milliseconds(), "NX")
	if err != nil || taken != nil {
		return err == nil, err
	}
	holder, err := c.bytes(ctx, key, "read who has the name "+node)
	return string(holder) == boot, err
}

// Unreserve ends a reservation of this boot.
func (c *Client) Unreserve(ctx context.Context, node, boot string) error {
	_, err := c.run(ctx, c.db.Scripts.ClusterSwap, []string{c.db.Keys.Name(node)}, boot, "")
	return err
}

// Time is Redis's clock.
func (c *Client) Time(ctx context.Context) (time.Time, error) {
	reply, err := c.db.Do(ctx, "read the time", "TIME")
	parts := redisdb.List(reply)
	if err != nil || len(parts) != 2 {
		return time.Time{}, err
	}
	return time.Unix(redisdb.Int(parts[0]), redisdb.Int(parts[1])*int64(time.Microsecond)), nil
}
