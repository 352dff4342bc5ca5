// Package handling answers one question: which handler call does a request belong to?
package handling

import (
	"context"

	"github.com/lowkiq/lowkiq"
)

// Call is a running handler call.
type Call struct {
	Home  Home
	Queue string
	Shard int
	Lanes int          // number of calls that the shard may have at once
	Jobs  []lowkiq.Job // the jobs of its batch
}

// Home says where a queue lives.
type Home struct{ Redis, Cluster string }

type key struct{}

// WithCall returns a context for a handler call.
func WithCall(ctx context.Context, c *Call) context.Context { return context.WithValue(ctx, key{}, c) }

// CallOf returns the handler call of a context, nil outside of a call.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(key{}).(*Call)
	return c
}

// Blocks reports whether no handler can get the id before this call returns. That is so if this call
// has the id, or the only lane of its shard.
func (c *Call) Blocks(home Home, queue string, shard int, id string) bool {
	if c == nil || c.Home != home || c.Queue != queue || c.Shard != shard {
		return false
	}
	for i := range c.Jobs {
		if c.Jobs[i].ID == id {
			return true
		}
	}
	return c.Lanes == 1
}
