package redistest

import (
	"context"
	"fmt"
)

// Move moves a slot from a master to another in steps, as in the Redis Cluster specification ("Live resharding"). Between
// two steps clients see the states that they must handle: ASK, TRYAGAIN, and MOVED at the end.
type Move struct {
	cluster  *Cluster
	slot     int
	from, to int // indices of masters
}

// BeginMove marks a slot as moving. It moves no key.
func (c *Cluster) BeginMove(slot, from, to int) *Move {
	c.t.Helper()
	m := &Move{cluster: c, slot: slot, from: from, to: to}
	if err := m.beginMove(c.t.Context()); err != nil {
		c.t.Errorf("begin to move slot %d from master %d to %d: %v", slot, from, to, err)
	}
	return m
}

// Step moves up to n keys and reports whether keys may be left.
func (m *Move) Step(n int) bool {
	m.cluster.t.Helper()
	moved, err := m.moveKeys(m.cluster.t.Context(), n)
	if err != nil {
		m.cluster.t.Errorf("move keys of slot %d: %v", m.slot, err)
	}
	return err == nil && moved > 0
}

// Finish moves the remaining keys, gives the slot to its new master, and waits until all masters agree who owns which slot.
func (m *Move) Finish() {
	m.cluster.t.Helper()
	for m.Step(100) {
	}
	if err := m.assignSlot(m.cluster.t.Context()); err != nil {
		m.cluster.t.Errorf("assign slot %d to master %d: %v", m.slot, m.to, err)
	}
	m.cluster.awaitAgreement()
}

func (m *Move) beginMove(ctx context.Context) error {
	// The receiver comes first, because it must accept a client that ASK sends there.
	if err := m.setSlot(ctx, m.to, "IMPORTING", m.from); err != nil {
		return err
	}
	return m.setSlot(ctx, m.from, "MIGRATING", m.to)
}

func (m *Move) moveKeys(ctx context.Context, n int) (int, error) {
	from := m.cluster.clients[m.from]
	keys, err := from.ClusterGetKeysInSlot(ctx, m.slot, n).Result()
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	host, port := hostPort(m.cluster.Masters[m.to])
	args := []any{"MIGRATE", host, port, "", 0, patience.Milliseconds(), "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	return len(keys), from.Do(ctx, args...).Err()
}

// assignSlot tells the receiver first. If the sender knew first, it would send clients to a master that sends them back. The
// other masters would learn by gossip, but later.
func (m *Move) assignSlot(ctx context.Context) error {
	order := []int{m.to, m.from}
	for i := range m.cluster.clients {
		if i != m.to && i != m.from {
			order = append(order, i)
		}
	}
	for _, i := range order {
		if err := m.setSlot(ctx, i, "NODE", m.to); err != nil {
			return fmt.Errorf("tell master %d: %w", i, err)
		}
	}
	return nil
}

func (m *Move) setSlot(ctx context.Context, at int, state string, master int) error {
	return m.cluster.clients[at].Do(ctx, "CLUSTER", "SETSLOT", m.slot, state, m.cluster.ids[master]).Err()
}
