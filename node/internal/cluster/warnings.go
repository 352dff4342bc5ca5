package cluster

import (
	"maps"
	"slices"
	"sync"
)

// warnings are what people should know of the cluster, in words, for as long as it is so.
type warnings struct {
	mu sync.Mutex
	of map[source]map[string]string // the texts, by what they are about; guarded by mu
}

// source is what finds warnings.
type source string

const (
	hostsApart  source = "nodes of several hosts on loopback addresses"
	disputed    source = "gossip and lease differ"
	unreachable source = "raft address out of reach"
	uncalled    source = "no calls to this node's raft address"
)

// set takes in all that a source finds now, by what it is about. It returns the texts that are new,
// and what is over. A text that lasts stays as it was, whatever it says now.
func (w *warnings) set(by source, found map[string]string) (news, over []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.of[by]
	for _, about := range slices.Sorted(maps.Keys(found)) {
		if text, lasts := was[about]; lasts {
			found[about] = text
		} else {
			news = append(news, found[about])
		}
	}
	for _, about := range slices.Sorted(maps.Keys(was)) {
		if _, lasts := found[about]; !lasts {
			over = append(over, about)
		}
	}
	if w.of == nil {
		w.of = map[source]map[string]string{}
	}
	w.of[by] = found
	return news, over
}

// has reports whether a source warns of this.
func (w *warnings) has(by source, about string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.of[by][about]
	return has
}

// list is all of them.
func (w *warnings) list() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, by := range []source{hostsApart, disputed, unreachable, uncalled} {
		list = append(list, slices.Sorted(maps.Values(w.of[by]))...)
	}
	return list
}
