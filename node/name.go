package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue/lease"
)

const (
	nameTries = 1000
	nameRetry = 50 * time.Millisecond
	nameHold  = 5 * time.Second // a reservation lasts as long, if its holder dies with it
)

// naming finds a name for a node that was given none: that of its host; if a live node has it,
// <host>-2, <host>-3, and so on. It belongs to the goroutine of Run, and then to that of the
// instances.
type naming struct {
	index    *lease.Index
	boot     string
	process  identity.Process
	log      *slog.Logger
	reserved string // the name, until the lease shows it; "" = none
}

// find finds a name that no live node has, and reserves it.
func (n *naming) find(ctx context.Context, host string) (string, error) {
	for i := 1; i <= nameTries; i++ {
		name := host
		if i > 1 {
			name = fmt.Sprintf("%s-%d", host, i)
		}
		mine, err := n.take(ctx, name)
		if err != nil {
			return "", fmt.Errorf("find a name: %w", err)
		}
		if mine {
			return name, nil
		}
	}
	return "", fmt.Errorf("names %s to %s-%d are taken by live nodes; configure another", host, host, nameTries)
}

// take reserves a name, or reports that a live node has it. A name that is merely reserved is
// waited for: soon a lease shows it, or it is free.
func (n *naming) take(ctx context.Context, name string) (bool, error) {
	for {
		if taken, err := n.taken(ctx, name); err != nil || taken {
			return false, err
		}
		reserved, err := n.index.Reserve(ctx, name, n.boot, nameHold)
		if err != nil {
			return false, err
		}
		if reserved {
			n.reserved = name
			// Between the two looks another process may have got its lease.
			taken, err := n.taken(ctx, name)
			if taken {
				n.free(ctx)
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

// taken reports whether a live node has a name.
func (n *naming) taken(ctx context.Context, name string) (bool, error) {
	live, err := leased(ctx, n.index)
	if err != nil {
		return false, err
	}
	for _, info := range live {
		if info.Node == name && !n.process.Gone(info.Process) {
			return true, nil
		}
	}
	return false, nil
}

// free ends the reservation, if there is one: the lease shows the name now, or never will.
func (n *naming) free(ctx context.Context) {
	name := n.reserved
	if n.reserved = ""; name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := n.index.Unreserve(ctx, name, n.boot); err != nil {
		n.log.Warn("reservation of the name not ended; it will lapse", "err", err)
	}
}
