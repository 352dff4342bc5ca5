package rebalance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is the cluster record: one value, kept where all nodes see it, that says
// which Raft group is the cluster's. The bytes mean nothing to whoever keeps them.
type Record interface {
	// Load returns the record, nil if there is none.
	Load(ctx context.Context) ([]byte, error)
	// CompareAndSet replaces the record old, nil for none, by new, nil to delete it,
	// and reports whether the record was old. After an error it may have happened.
	CompareAndSet(ctx context.Context, old, new []byte) (bool, error)
	// Now returns the keeper's time; it makes record ids that grow even when the
	// record was lost.
	Now(ctx context.Context) (time.Time, error)
}

// Mark is the leader's sign of life: a value that vanishes one lease ttl after its
// last renewal.
type Mark interface {
	// Load returns the mark, nil if it is missing.
	Load(ctx context.Context) ([]byte, error)
	// Renew sets the mark for another ttl, but only while the cluster record equals
	// record, and reports whether it did.
	Renew(ctx context.Context, record, mark []byte) (bool, error)
}

// record is the content of a Record.
type record struct {
	ID     uint64   `json:"id"`
	Voters []string `json:"voters"` // server ids, ascending
	// Fewer are the voters on the smaller side of a step of the Raft configuration, while it is under way:
	// Raft may have made it, or not. Voters are those of the larger side then.
	Fewer []string `json:"fewer,omitempty"`
}

func (r *record) encode() []byte {
	data, err := json.Marshal(r)
	if err != nil { // a number and strings always marshal
		panic(err)
	}
	return data
}

// decodeRecord returns nil for no data, and for data that make no sense: a later release adds fields to a record, and no
// more than that.
func decodeRecord(data []byte) (*record, error) {
	if data == nil {
		return nil, nil
	}
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("decode cluster record %.100q: %w", data, err)
	}
	if r.ID == 0 {
		return nil, fmt.Errorf("decode cluster record %.100q: no id", data)
	}
	return r, nil
}

// with returns a record of the same id on the way from some voters to others, or with those that are there if
// both are the same. One of the two holds the other.
func (r *record) with(before, after []string) *record {
	fewer, voters := ascending(before), ascending(after)
	if len(fewer) > len(voters) {
		fewer, voters = voters, fewer
	}
	if len(fewer) == len(voters) {
		fewer = nil
	}
	return &record{ID: r.ID, Voters: voters, Fewer: fewer}
}

func ascending(ids []string) []string { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// serverID names a process's k-th Raft server under the record. A process that
// drops its Raft counts k up, so no id ever comes back without its log: that is
// what makes it safe to keep the log in memory.
func serverID(boot string, record uint64, k int) string {
	return fmt.Sprintf("%s#%d.%d", boot, record, k)
}

// bootOf returns the boot in a server id.
func bootOf(server string) string {
	boot, _, _ := strings.Cut(server, "#")
	return boot
}

// recordOf returns the record id in a server id, 0 if there is none.
func recordOf(server string) uint64 {
	_, rest, _ := strings.Cut(server, "#")
	id, _, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
