package node

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
)

// checkStatic returns the faults of the fields for static nodes.
func (cfg Config) checkStatic() (errs []error) {
	switch {
	case cfg.Of < 0:
		errs = append(errs, fmt.Errorf("of is %d, must be at least 1", cfg.Of))
	case cfg.Of == 0 && cfg.Number != 0:
		errs = append(errs, fmt.Errorf("number is %d and of is not set; both must be set", cfg.Number))
	case cfg.Of > 0 && (cfg.Number < 0 || cfg.Number >= cfg.Of):
		errs = append(errs, fmt.Errorf("number is %d, must be 0 to %d, because of is %d", cfg.Number, cfg.Of-1, cfg.Of))
	case cfg.Of > 0 && cfg.Splitter != nil:
		errs = append(errs, errors.New("of and Splitter are set; only one of them may be set"))
	}
	if cfg.static() != nil && (cfg.Bind != "" || len(cfg.Join) > 0 || cfg.Weight != 0 || len(cfg.GossipKeys) > 0) {
		errs = append(errs, errors.New("a static node takes part in no cluster, so Bind, Join, Weight and GossipKeys must be empty"))
	}
	return errs
}

// static returns which shards a static node owns, for the lease, and nil for other nodes.
func (cfg Config) static() *identity.Share {
	if cfg.Of == 0 && cfg.Splitter == nil {
		return nil
	}
	return &identity.Share{Of: cfg.Of, Number: cfg.Number}
}

// Static says which shards a static node owns, such as "0 of 3". It returns "" for other nodes.
func (n *Node) Static() string { return n.cfg.static().String() }

// chooseShards chooses the shards that a static node owns, from the present shards of its queues. On other nodes it does
// nothing. It calls the Splitter, and returns an error if the Splitter panics.
func (in *instance) chooseShards() (err error) {
	n := in.node
	share, split := n.cfg.static(), n.cfg.Splitter
	if share == nil {
		return nil
	}
	if split == nil {
		split = share.Select
	}
	var all, builtIn []lowkiq.Shard // a Splitter knows queues of users only
	for _, s := range n.queues.allShards() {
		if n.queues.handled[s.Queue].builtIn && n.cfg.Splitter != nil {
			builtIn = append(builtIn, s.Shard)
		} else {
			all = append(all, s.Shard)
		}
	}
	slices.SortFunc(all, func(x, y lowkiq.Shard) int {
		return cmp.Or(strings.Compare(x.Queue, y.Queue), cmp.Compare(x.Index, y.Index))
	})
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the Splitter of the node's configuration panics: %v\n%s", value, debug.Stack())
		}
	}()
	own := map[lowkiq.Shard]bool{}
	var unknown []lowkiq.Shard
	for _, s := range slices.Concat(split(slices.Clone(all)), share.Select(builtIn)) {
		if n.queues.findShard(s) == nil {
			unknown = append(unknown, s)
			continue
		}
		own[s] = true
	}
	if len(unknown) > 0 {
		n.log.Error("the Splitter names shards that do not exist, and they are left out", "first", unknown[0], "number", len(unknown))
	}
	n.log.Info("static node", "share", share.String(), "shards", len(own), "of", len(all))
	in.ownership.static.Store(&own)
	return nil
}
