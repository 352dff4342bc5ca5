package status

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/process/identity"
)

// Drain sends the request to the newest live instance of a node, which may be this instance.
func (x inspector) Drain(ctx context.Context, name string, on bool) (string, error) {
	live, err := identity.Live(ctx, x.Client().Protocol().Leases())
	if err != nil {
		return "", err
	}
	newest := map[string]identity.Lease{}
	for _, info := range live {
		if best, ok := newest[info.Node]; !ok || info.Start.After(best.Start) {
			newest[info.Node] = info
		}
	}
	info, ok := newest[name]
	if !ok {
		return "", unknownNode(name, newest)
	}
	got, err := x.Client().Protocol().Drain(ctx, info.Instance, on)
	if err == nil && !got {
		err = fmt.Errorf("drain %s: %w", info.Instance, ErrNotHeard)
	}
	return info.Instance, err
}

// DrainProgress returns the progress of an instance that was asked to give its shards away.
func (x inspector) DrainProgress(ctx context.Context, instance string) (d DrainProgress, err error) {
	live, err := identity.Live(ctx, x.Client().Protocol().Leases())
	info, leased := live[instance]
	d = DrainProgress{Ended: !leased, Drains: info.Draining}
	for _, owned := range info.Queues {
		d.Shards += owned
	}
	return d, err
}
