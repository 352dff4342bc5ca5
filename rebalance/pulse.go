package rebalance

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// All that Raft does, it does in one goroutine. If that one hangs, or does not come to an end, the process has no vote and
// applies nothing, and Raft still says what it said before. So a server that does not lead is asked again and again for
// what only a leader does, which it refuses at once. One that does not even take the question for hungTTLs is dropped, and
// another one started under another id, which begins without a vote. A leader that hangs commits nothing; see pending.

// hungTTLs is for how many lease ttls Raft may not answer.
const hungTTLs = 5

// pulse is what the agent knows of whether Raft answers.
type pulse struct {
	answer chan error // to the last question; nil if it is there
	asked  time.Time
	missed int // how many questions in a row were not taken within a ttl: a process that was frozen may miss one
}

// feel looks for an answer, and asks. It reports whether the server has hung.
func (p *pulse) feel(now time.Time, ttl time.Duration, ask func() error) (hung bool) {
	select {
	case err := <-p.answer:
		p.answer = nil
		if p.missed++; !errors.Is(err, raft.ErrEnqueueTimeout) {
			p.missed = 0
		}
	default:
	}
	if p.answer == nil && now.Sub(p.asked) >= ttl {
		answer := make(chan error, 1)
		go func() { answer <- ask() }() // a ttl at most
		p.answer, p.asked = answer, now
	}
	return p.missed >= hungTTLs
}

// checkPulse replaces a Raft server that has hung.
func (a *Agent) checkPulse(now time.Time) {
	if a.server == nil || a.server.raft.State() == raft.Leader {
		a.pulse = pulse{}
		return
	}
	r := a.server.raft
	if !a.pulse.feel(now, a.cfg.TTL, func() error { return r.Barrier(a.cfg.TTL).Error() }) {
		return
	}
	a.hung = fmt.Sprintf("raft server %s has not answered for %d lease ttls", a.server.id, hungTTLs)
	a.log.Error("raft has hung: another server is started; report it, with what the node has logged", "server", a.server.id)
	a.drop()
}
