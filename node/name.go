package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/lease"
)

const (
	maxNameTries   = 1000
	nameRetry      = 50 * time.Millisecond
	reservationTTL = 5 * time.Second // of a reservation whose process has died
)

// naming finds a name for a node without a configured name. It tries the name of the host, and then <host>-2, <host>-3 and so
// on, until no live node has the name. Only the goroutine of Run uses it, and then the goroutine of the instances.
type naming struct {
	index    *lease.Index
	boot     string
	process  identity.Process
	log      *slog.Logger
	reserved string // the name until the lease shows it; "" without a reservation
}

// findName returns a name that no live node has, and reserves it.
func (n *naming) findName(ctx context.Context, host string) (string, error) {
	for i := 1; i <= maxNameTries; i++ {
		name := host
		if i > 1 {
			name = fmt.Sprintf("%s-%d", host, i)
		}
		mine, err := n.reserveName(ctx, name)
		if err != nil {
			return "", fmt.Errorf("find a name: %w", err)
		}
		if mine {
			return name, nil
		}
	}
	return "", fmt.Errorf("names %s to %s-%d are taken by live nodes; configure another name", host, host, maxNameTries)
}

// reserveName reserves a name. It returns false if a live node has the name. It waits while another process has reserved
// the name, because soon a lease shows the name, or the reservation ends.
func (n *naming) reserveName(ctx context.Context, name string) (bool, error) {
	for {
		if taken, err := n.isTaken(ctx, name); err != nil || taken {
			return false, err
		}
		reserved, err := n.index.Reserve(ctx, name, n.boot, reservationTTL)
		if err != nil {
			return false, err
		}
		if reserved {
			n.reserved = name
			// Another process may have taken a lease with this name before the reservation.
			taken, err := n.isTaken(ctx, name)
			if taken {
				n.endReservation(ctx)
			}
			return !taken, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(nameRetry):
		}
	}
}

// isTaken reports whether a live node has a name.
func (n *naming) isTaken(ctx context.Context, name string) (bool, error) {
	live, err := identity.Live(ctx, n.index)
	if err != nil {
		return false, err
	}
	for _, info := range live {
		if info.Node == name && !n.process.IsGone(info.Process) {
			return true, nil
		}
	}
	return false, nil
}

// endReservation ends the reservation, if any. The lease shows the name now, or no lease will.
func (n *naming) endReservation(ctx context.Context) {
	name := n.reserved
	if n.reserved = ""; name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := n.index.Unreserve(ctx, name, n.boot); err != nil {
		n.log.Warn("reservation of the name was not deleted and will expire", "err", err)
	}
}
