package demo

import (
	"slices"
	"sync"

	"github.com/lowkiq/lowkiq/internal/network/remote"
)

// apis are the APIs of the living nodes, which are asked in turn. Each answers for the whole cluster. All goroutines may use
// them.
type apis struct {
	mu   sync.Mutex
	list []api // guarded by mu
	turn int   // guarded by mu
}

type api struct {
	node   string
	client *remote.Client
}

func (a *apis) add(node, address string) {
	client, err := remote.New(address, "")
	if err != nil {
		return // the worker reports a valid address
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, api{node, client})
}

func (a *apis) remove(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = slices.DeleteFunc(a.list, func(one api) bool { return one.node == node })
}

// next returns the API of the next node, or nil without a node.
func (a *apis) next() *remote.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) == 0 {
		return nil
	}
	a.turn = (a.turn + 1) % len(a.list)
	return a.list[a.turn].client
}
