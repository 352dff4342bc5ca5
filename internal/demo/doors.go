package demo

import (
	"slices"
	"sync"

	"github.com/lowkiq/lowkiq/internal/remote"
)

// doors are the APIs of the nodes that live, to be knocked at in turn: each of them
// speaks for the whole cluster. They are safe for all goroutines.
type doors struct {
	mu   sync.Mutex
	list []door // guarded by mu
	next int    // guarded by mu
}

type door struct {
	node   string
	client *remote.Client
}

func (d *doors) open(node, address string) {
	client, err := remote.New(address, "")
	if err != nil {
		return // a worker tells its own address
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, door{node, client})
}

func (d *doors) shut(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = slices.DeleteFunc(d.list, func(one door) bool { return one.node == node })
}

// knock is the API of the next node, nil if there is none.
func (d *doors) knock() *remote.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == 0 {
		return nil
	}
	d.next = (d.next + 1) % len(d.list)
	return d.list[d.next].client
}
