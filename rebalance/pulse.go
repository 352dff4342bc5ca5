package rebalance

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Raft does its work in one goroutine. If that goroutine hangs, the process gives no vote and applies nothing, and Raft's
// state still looks healthy. So the agent sends a server that does not lead a request that only a leader accepts. A healthy
// server refuses it at once. A server that does not even accept the request into its queue for hungTTLs is dropped. The agent
// starts another server under another id, which begins without a vote. A leader that hangs commits nothing; see pending.

// hungTTLs is the number of lease ttls after which a server that does not answer counts as hung.
const hungTTLs = 5

// pulse records whether Raft answers.
type pulse struct {
	answer chan error // of the open probe; nil if none is open
	asked  time.Time
	missed int // successive probes that Raft did not accept within a ttl; a thawed process may miss one
}

// probe reads the answer to the last probe and sends the next at most once per ttl. It reports whether the server has hung.
func (p *pulse) probe(now time.Time, ttl time.Duration, send func() error) (hung bool) {
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
		go func() { answer <- send() }() // ends within a ttl
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
	if !a.pulse.probe(now, a.cfg.TTL, func() error { return r.Barrier(a.cfg.TTL).Error() }) {
		return
	}
	a.hung = fmt.Sprintf("raft server %s has not answered for %d lease ttls", a.server.id, hungTTLs)
	a.log.Error("raft has hung, so this node starts another raft server; please report this with the node's log", "server", a.server.id)
	a.dropServer()
}
