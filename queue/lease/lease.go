// Package lease says which instances of nodes are alive, and who leads them.
//
// An instance takes a [Lease] and renews it. It is dead once the lease has expired. The [Index] keeps the
// identities of instances for longer, so that another node can prove that a process is gone. The package also
// stores the cluster's [Record] and the leader's [Mark]. It does not interpret any of them: a node decides what a
// lease or a record says.
package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Lease is an instance's proof of life in Redis. A lease that has expired can never come back, because Renew only
// writes a lease that exists, and the name of an instance is never used twice.
type Lease struct {
	db       *redisdb.DB
	key      string
	Instance string
}

// ErrGone means that the lease has expired or was deleted. It is final.
var ErrGone = errors.New("the lease is gone")

// Index gives access to a cluster's instances, their leases and related keys. It is safe for concurrent use.
type Index struct{ db *redisdb.DB }

// In returns the index of the cluster whose keys db uses.
func In(db *redisdb.DB) *Index { return &Index{db} }

// Take creates the lease of a new instance and adds the instance to the index. identity identifies the process, and
// stays in the index when the lease has expired. value is the text of the lease.
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

// Renew replaces the text of the lease and lets the lease expire ttl from now. If the lease is gone, the error is
// ErrGone, which is final. Renew sends one command. A Redis that is out of memory refuses it, and then a script
// renews the lease.
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

// Drop deletes the lease of an instance that is proven dead, and removes the instance from the index.
func (x *Index) Drop(ctx context.Context, instance string) error {
	_, err := x.db.Pipeline(ctx, "drop the lease of "+instance,
		redisdb.Cmd{"DEL", x.db.Keys.Lease(instance)}, redisdb.Cmd{"HDEL", x.db.Keys.Instances(), instance})
	return err
}

// End deletes the lease of an instance that is proven dead. The index keeps its identity, so that the proof can be
// repeated as long as claims name the instance.
func (x *Index) End(ctx context.Context, instance string) error {
	_, err := x.db.Do(ctx, "end the lease of "+instance, "DEL", x.db.Keys.Lease(instance))
	return err
}

// Instance is an entry of the index of instances.
type Instance struct {
	Name     string
	Identity []byte // as given to Take; nil if the instance is not in the index
	Lease    []byte // the text of the lease; nil if the lease is gone
}

// Instance reads an instance and its lease.
func (x *Index) Instance(ctx context.Context, name string) (Instance, error) {
	replies, err := x.db.Pipeline(ctx, "read instance "+name,
		redisdb.Cmd{"HGET", x.db.Keys.Instances(), name}, redisdb.Cmd{"GET", x.db.Keys.Lease(name)})
	if err != nil {
		return Instance{}, err
	}
	return Instance{Name: name, Identity: redisdb.Bytes(replies[0]), Lease: redisdb.Bytes(replies[1])}, nil
}

// Identities reads the index without leases, in the order of the names.
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

// All reads the index with the leases of all its instances.
func (x *Index) All(ctx context.Context) ([]Instance, error) {
	index, err := x.Identities(ctx)
	if err != nil || len(index) == 0 {
		return index, err
	}
	state, err := x.State(ctx, index)
	return state.Instances, err
}

// Left returns how soon each lease expires unless it is renewed, 0 for a lease that is gone.
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

// Reserve reserves a node's name for a boot, for ttl at most. Later the lease shows that the name is taken. Reserve
// returns false if another boot has the name. It may be repeated, which go-redis does by itself in a Redis
// Cluster when an answer is lost.
func (x *Index) Reserve(ctx context.Context, node, boot string, ttl time.Duration) (bool, error) {
	key := x.db.Keys.Name(node)
	taken, err := x.db.Do(ctx, "reserve the name "+node, "SET", key, boot, "PX", ttl.Milliseconds(), "NX")
	if err != nil || taken != nil {
		return err == nil, err
	}
	holder, err := loadKey(ctx, x.db, key, "read who has the name "+node)
	return string(holder) == boot, err
}

// Unreserve ends a reservation of this boot.
func (x *Index) Unreserve(ctx context.Context, node, boot string) error {
	_, err := x.db.Run(ctx, x.db.Scripts.ClusterSwap, []string{x.db.Keys.Name(node)}, boot, "")
	return err
}
