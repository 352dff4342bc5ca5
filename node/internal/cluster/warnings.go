package cluster

import (
	"maps"
	"slices"
	"sync"
)

// warnings are texts that people should know about the cluster. A text stays while its cause lasts.
type warnings struct {
	mu sync.Mutex
	of map[source]map[string]string // texts by source and subject; guarded by mu
}

// source is the check that finds warnings.
type source string

const (
	hostsApart  source = "nodes of several hosts on loopback addresses"
	disputed    source = "gossip and lease differ"
	unreachable source = "raft address out of reach"
	uncalled    source = "no calls to this node's raft address"
)

// replace replaces the warnings of a source with found, the texts by subject. It returns the new
// texts and the subjects that are over. A warning that lasts keeps its first text.
func (w *warnings) replace(by source, found map[string]string) (news, over []string) {
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

// contains reports whether a source warns about a subject.
func (w *warnings) contains(by source, about string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.of[by][about]
	return has
}

// list returns all texts.
func (w *warnings) list() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, by := range []source{hostsApart, disputed, unreachable, uncalled} {
		list = append(list, slices.Sorted(maps.Values(w.of[by]))...)
	}
	return list
}
