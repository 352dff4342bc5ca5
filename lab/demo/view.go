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

// view is the state of the cluster as a node reported it. It does not change.
type view struct {
	asked  time.Time // the time before the request
	leader string
	lag    float64        // seconds
	owners []string       // the node that serves each shard, "" for none
	owned  map[string]int // shards per node
}

// observeCluster reads the view five times a second until ctx ends.
func observeCluster(ctx context.Context, from *apis, seen func(*view)) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if v, err := readView(ctx, from); err == nil {
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

// readView asks a node for its view of the cluster, for at most 3 s. The status and the shards come
// from two requests, so they may be of different moments.
func readView(ctx context.Context, from *apis) (*view, error) {
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

// newView counts a shard as owned until its owner has left it. The lag of the view is the largest
// lag of a shard.
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

// isBalanced reports whether these nodes serve all shards and their shares differ by at most one
// shard.
func (v *view) isBalanced(nodes []string) bool {
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

// countMoved counts the shards with another owner than before.
func (v *view) countMoved(before *view) int {
	n := 0
	for i, owner := range v.owners {
		if i < len(before.owners) && before.owners[i] != owner {
			n++
		}
	}
	return n
}

// sharesText says how many shards each node serves.
func (v *view) sharesText() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.owned)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, v.owned[name]))
	}
	if len(parts) == 0 {
		return "none is served"
	}
	return strings.Join(parts, ", ")
}
