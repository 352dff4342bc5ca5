package lease

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Record is the value in Redis that says which Raft group leads the cluster.
type Record struct{ db *redisdb.DB }

// Record returns the cluster's record.
func (x *Index) Record() Record { return Record{x.db} }

// Load returns the record, nil if there is none.
func (r Record) Load(ctx context.Context) ([]byte, error) {
	return loadKey(ctx, r.db, r.db.Keys.Record(), "read the cluster record")
}

// CompareAndSet replaces the record old by next, and reports whether the record was old. A nil old means that there
// is no record, a nil next deletes the record. After an error the record may have been replaced.
func (r Record) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	reply, err := r.db.Run(ctx, r.db.Scripts.ClusterSwap, []string{r.db.Keys.Record()}, old, next)
	return reply == int64(1), err
}

// Now returns the time by Redis's clock.
func (r Record) Now(ctx context.Context) (time.Time, error) { return r.db.Time(ctx) }

// Mark is a value of the leader that expires a ttl after its last renewal.
type Mark struct {
	db  *redisdb.DB
	ttl time.Duration
}

// Mark returns the leader's mark.
func (x *Index) Mark(ttl time.Duration) Mark { return Mark{x.db, ttl} }

// Load returns the mark, nil if it is missing.
func (m Mark) Load(ctx context.Context) ([]byte, error) {
	return loadKey(ctx, m.db, m.db.Keys.Leader(), "read the leader's mark")
}

// Renew sets the mark for another ttl if the cluster record equals record, and reports whether it does.
func (m Mark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	reply, err := m.db.Run(ctx, m.db.Scripts.Mark, []string{m.db.Keys.Record(), m.db.Keys.Leader()}, record, mark, m.ttl.Milliseconds())
	return reply == int64(1), err
}

// Drop deletes the mark of a leader that is proven dead.
func (m Mark) Drop(ctx context.Context) error {
	_, err := m.db.Do(ctx, "drop the leader's mark", "DEL", m.db.Keys.Leader())
	return err
}

// ClusterState has the values that a node reads again and again, with one command.
type ClusterState struct {
	Record    []byte // of the cluster; nil if there is none
	Mark      []byte // of the leader; nil if it is missing
	Instances []Instance
}

// State reads the record, the mark and the leases of known instances.
func (x *Index) State(ctx context.Context, known []Instance) (ClusterState, error) {
	mget := []any{"MGET", x.db.Keys.Record(), x.db.Keys.Leader()}
	for _, i := range known {
		mget = append(mget, x.db.Keys.Lease(i.Name))
	}
	reply, err := x.db.Do(ctx, "read record, mark and leases", mget...)
	if err != nil {
		return ClusterState{}, err
	}
	values := redisdb.List(reply)
	state := ClusterState{Record: redisdb.Bytes(values[0]), Mark: redisdb.Bytes(values[1]), Instances: make([]Instance, len(known))}
	for i, of := range known {
		state.Instances[i] = Instance{Name: of.Name, Identity: of.Identity, Lease: redisdb.Bytes(values[i+2])}
	}
	return state, nil
}

func loadKey(ctx context.Context, db *redisdb.DB, key, what string) ([]byte, error) {
	value, err := db.Do(ctx, what, "GET", key)
	return redisdb.Bytes(value), err
}
