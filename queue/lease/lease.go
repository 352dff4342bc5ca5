// Package lease says which instances of nodes are alive, and who leads them.
//
// An instance takes a [Lease], renews it, and is dead once it has expired. The [Index]
// keeps the instances' identities for longer, so that another node can prove that a
// process is gone. The cluster's [Record] and the leader's [Mark] are beside it. All of it
// is bytes here: what a lease or a record says is the business of the node.
package lease

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
	db       *redisdb.DB
	key      string
	Instance string
}

// ErrGone means that the lease has expired or was deleted, for good.
var ErrGone = errors.New("the lease is gone")

// Index is the index of a cluster's instances, with the keys beside it. It is safe for
// concurrent use.
type Index struct{ db *redisdb.DB }

// In returns the index of the cluster whose keys db uses.
func In(db *redisdb.DB) *Index { return &Index{db} }

// Take creates the lease of a new instance and puts it into the index of
// instances, with what identifies its process: that outlives the lease.
func (x *Index) Take(ctx context.Context, instance string, identity, value []byte, ttl time.Duration) (*Lease, error) {
	l := &Lease{db: x.db, key: x.db.Keys.Lease(instance), Instance: instance}
	reply, err := x.db.Run(ctx, x.db.Scripts.LeaseNew, []string{l.key, x.db.Keys.Instances()}, value, ttl.Milliseconds(), instance, identity)
	if err != nil {
		return nil, err
	}
	if reply != int64(1) {
		return nil, fmt.Errorf("instance %s: its lease exists already; an instance's name must never be used twice", instance)
	}
	return l, nil
}

// Renew rewrites the lease and extends it by ttl from now. ErrGone is final. It is
// one command; only a Redis out of memory, which refuses that, is asked by the script.
func (l *Lease) Renew(ctx context.Context, value []byte, ttl time.Duration) error {
	reply, err := l.db.Do(ctx, "lease", "SET", l.key, value, "PX", ttl.Milliseconds(), "XX")
	renewed := reply != nil
	if redisdb.Says(err, "OOM") {
		reply, err = l.db.Run(ctx, l.db.Scripts.Lease, []string{l.key}, value, ttl.Milliseconds())
		renewed = reply == int64(1)
	}
	if err != nil {
		return err
	}
	if !renewed {
		return fmt.Errorf("instance %s: %w", l.Instance, ErrGone)
	}
	return nil
}

// Drop deletes the lease, so that others need not wait for it to expire.
func (l *Lease) Drop(ctx context.Context) error { return In(l.db).Drop(ctx, l.Instance) }

// Drop deletes the lease of an instance that is proven dead, and forgets the
// instance.
func (x *Index) Drop(ctx context.Context, instance string) error {
	_, err := x.db.Pipeline(ctx, "drop the lease of "+instance,
		redisdb.Cmd{"DEL", x.db.Keys.Lease(instance)}, redisdb.Cmd{"HDEL", x.db.Keys.Instances(), instance})
	return err
}

// End deletes the lease of an instance that is proven dead. The index keeps what
// identifies it, so that the proof can be repeated until nothing refers to it.
func (x *Index) End(ctx context.Context, instance string) error {
	_, err := x.db.Do(ctx, "end the lease of "+instance, "DEL", x.db.Keys.Lease(instance))
	return err
}

// Instance is an entry of the index of instances.
type Instance struct {
	Name     string
	Identity []byte // what Take was given; nil if the instance is not in the index
	Lease    []byte // what the lease says; nil if it is gone
}

// Instance reads one entry.
func (x *Index) Instance(ctx context.Context, name string) (Instance, error) {
	replies, err := x.db.Pipeline(ctx, "read instance "+name,
		redisdb.Cmd{"HGET", x.db.Keys.Instances(), name}, redisdb.Cmd{"GET", x.db.Keys.Lease(name)})
	if err != nil {
		return Instance{}, err
	}
	return Instance{Name: name, Identity: redisdb.Bytes(replies[0]), Lease: redisdb.Bytes(replies[1])}, nil
}

// Identities reads the index alone: names and identities, in order of their names, no leases.
func (x *Index) Identities(ctx context.Context) ([]Instance, error) {
	reply, err := x.db.Do(ctx, "list instances", "HGETALL", x.db.Keys.Instances())
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

// All reads the index and the leases of all that are in it.
func (x *Index) All(ctx context.Context) ([]Instance, error) {
	index, err := x.Identities(ctx)
	if err != nil || len(index) == 0 {
		return index, err
	}
	state, err := x.State(ctx, index)
	return state.Instances, err
}

// Left returns for how long the leases of instances last unless they are renewed; 0
// for one that is gone.
func (x *Index) Left(ctx context.Context, instances ...Instance) ([]time.Duration, error) {
	cmds := make([]redisdb.Cmd, len(instances))
	for i, known := range instances {
		cmds[i] = redisdb.Cmd{"PTTL", x.db.Keys.Lease(known.Name)}
	}
	replies, err := x.db.Pipeline(ctx, "read how long leases last", cmds...)
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
func (x *Index) Reserve(ctx context.Context, node, boot string, ttl time.Duration) (bool, error) {
	key := x.db.Keys.Name(node)
	taken, err := x.db.Do(ctx, "reserve the name "+node, "SET", key, boot, "PX", ttl.Milliseconds(), "NX")
	if err != nil || taken != nil {
		return err == nil, err
	}
	holder, err := load(ctx, x.db, key, "read who has the name "+node)
	return string(holder) == boot, err
}

// Unreserve ends a reservation of this boot.
func (x *Index) Unreserve(ctx context.Context, node, boot string) error {
	_, err := x.db.Run(ctx, x.db.Scripts.ClusterSwap, []string{x.db.Keys.Name(node)}, boot, "")
	return err
}
