package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// maxShares is the number of static nodes that a text names.
const maxShares = 10

// sharesOf lists which static nodes own which shards, such as "n1 0 of 3, n2 2 of 3". It returns "" if no node is static.
func sharesOf(nodes []*Instance) string {
	var shares []string
	for _, n := range nodes {
		if n.Static != "" {
			shares = append(shares, n.Node+" "+n.Static)
		}
	}
	slices.Sort(shares)
	if more := len(shares) - maxShares; more > 0 {
		shares = append(shares[:maxShares], fmt.Sprintf("%d more", more))
	}
	return strings.Join(shares, ", ")
}

// takeNoOthers says why static nodes leave a shard unowned.
func takeNoOthers(shares string) string {
	return fmt.Sprintf("static nodes take no shards but their own (%s)", shares)
}

// warnOfShares returns a warning for each queue of static nodes with shards that no live node owns.
func warnOfShares(live []identity.Lease, entries map[string]protocol.RegistryEntry) (warnings []string) {
	handled, owned := Handled{}, map[string]int{}
	for _, info := range live {
		handled = append(handled, handledBy(info.Instance, info))
		for name, n := range info.Queues {
			owned[name] += n
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		shares, all := sharesOf(handled.of(name)), entries[name].Shards
		if left := all - owned[name]; left > 0 && shares != "" {
			warnings = append(warnings, fmt.Sprintf("%d of %d shards of queue %s have no owner; %s", left, all, name, takeNoOthers(shares)))
		}
	}
	return warnings
}
