//go:build unix

package handler

import (
	"encoding/binary"
	"os"
	"sync"
	"time"
)

// grants tells the guards for how long their children may work.
type grants struct {
	mu    sync.Mutex // guards both; held while writing, which is bounded
	lives map[*os.File]bool
	until time.Time // zero = Grant was never called
}

// Grant says that the children may work for the time left of the node's lease, from
// now; call it with every renewal. A guard that hears of no further grant in that
// time kills its child, even if the node is frozen and can kill nothing itself (I1).
// Until the first call only the node's death ends the children.
func (e *Exec) Grant(left time.Duration) {
	g := &e.grants
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = time.Now().Add(left)
	for life := range g.lives {
		grant(life, left)
	}
}

// add makes a new child's guard hear of grants, the present one first. If that is
// over, so that no batch will come, the next one will be its first.
func (g *grants) add(life *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := time.Until(g.until); left > 0 {
		grant(life, left)
	}
	if g.lives == nil {
		g.lives = map[*os.File]bool{}
	}
	g.lives[life] = true
}

func (g *grants) remove(life *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.lives, life)
}

// grant writes to a pipe that is empty unless its guard hangs; the lease must not.
// An error means that the child is being killed.
func grant(life *os.File, left time.Duration) {
	_ = life.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = life.Write(binary.LittleEndian.AppendUint64(nil, uint64(max(left, 0))))
}
