package node

import (
	"context"
	"fmt"
	"time"
)

// A node that was given no name calls itself after its host; if a live node has that
// name, <host>-2, <host>-3, and so on.

const (
	nameTries = 1000
	nameRetry = 50 * time.Millisecond
	nameHold  = 5 * time.Second // a reservation lasts as long, if its holder dies with it
)

// settleName finds a name that nobody has, and reserves it until the lease shows it.
func (n *Node) settleName(ctx context.Context) error {
	if !n.unnamed {
		return nil
	}
	host := n.cfg.Name
	for i := 1; i <= nameTries; i++ {
		name := host
		if i > 1 {
			name = fmt.Sprintf("%s-%d", host, i)
		}
		mine, err := n.takeName(ctx, name)
		if err != nil {
			return fmt.Errorf("find a name: %w", err)
		}
		if mine {
			n.rename(name)
			return nil
		}
	}
	return fmt.Errorf("names %s to %s-%d are taken by live nodes; configure another", host, host, nameTries)
}

// takeName reserves a name, or reports that a live node has it. A name that is merely
// reserved is waited for: soon a lease shows it, or it is free.
func (n *Node) takeName(ctx context.Context, name string) (bool, error) {
	for {
		if taken, err := n.nameTaken(ctx, name); err != nil || taken {
			return false, err
		}
		reserved, err := n.client.Reserve(ctx, name, n.boot, nameHold)
		if err != nil {
			return false, err
		}
		if reserved {
			n.reserved.Store(true)
			// Between the two looks another process may have got its lease.
			taken, err := n.nameTaken(ctx, name)
			if taken {
				n.freeName(ctx, name)
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

func (n *Node) nameTaken(ctx context.Context, name string) (bool, error) {
	live, err := n.holders(ctx)
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

func (n *Node) rename(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg.Name = name
	n.log = n.cfg.Log.With("node", name)
}

// freeName ends the reservation: the lease shows the name now, or never will.
func (n *Node) freeName(ctx context.Context, name string) {
	if !n.reserved.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := n.client.Unreserve(ctx, name, n.boot); err != nil {
		n.log.Warn("reservation of the name not ended; it will lapse", "err", err)
	}
}
