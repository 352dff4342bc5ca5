package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/status"
)

// view is what a node says of its cluster. It does not change.
type view struct {
	asked  time.Time // before
	leader string
	lag    float64        // seconds
	owners []string       // node per shard that serves it; "" = none
	owned  map[string]int // shards per node
}

// observe asks for the view five times a second until ctx ends.
func observe(ctx context.Context, from *apis, seen func(*view)) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if v, err := look(ctx, from); err == nil {
			seen(v)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

var errNobody = errors.New("no node answers")

func look(ctx context.Context, from *apis) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	asked := time.Now()
	client := from.next()
	if client == nil {
		return nil, errNobody
	}
	var known status.Status
	var shards []status.Shard
	for path, into := range map[string]any{"/api/v1/status": &known, "/api/v1/shards": &shards} {
		answer, err := client.Get(ctx, path)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(answer, into); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return newView(asked, known, shards), nil
}

func newView(asked time.Time, known status.Status, shards []status.Shard) *view {
	v := &view{asked: asked, leader: known.Leader, owners: make([]string, len(shards)), owned: map[string]int{}}
	for i, shard := range shards {
		v.lag = max(v.lag, shard.Lag)
		if shard.State != status.Owned && shard.State != status.Leaving {
			continue
		}
		v.owners[i], _, _ = strings.Cut(shard.Owner, "/")
		v.owned[v.owners[i]]++
	}
	return v
}

// balanced tells whether these nodes serve all shards, each as many as the others or one
// more.
func (v *view) balanced(nodes []string) bool {
	total := 0
	for _, name := range nodes {
		n := v.owned[name]
		if n < queueShards/len(nodes) || n > (queueShards+len(nodes)-1)/len(nodes) {
			return false
		}
		total += n
	}
	return total == queueShards && v.leader != ""
}

// moved counts the shards with another owner than before.
func (v *view) moved(before *view) int {
	n := 0
	for i, owner := range v.owners {
		if i < len(before.owners) && before.owners[i] != owner {
			n++
		}
	}
	return n
}

// shares says how many shards each node serves.
func (v *view) shares() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.owned)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, v.owned[name]))
	}
	if len(parts) == 0 {
		return "none is served"
	}
	return strings.Join(parts, ", ")
}
