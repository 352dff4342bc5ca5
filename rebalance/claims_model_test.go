package rebalance

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/explore"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// This model is the argument for I1 and for "no shard stays held by someone who does
// not know it": two processes, one shard with one job, leases, claims with fences,
// and a plan that moves the shard from A to B, which either learns early or late, so
// that both or none may want it.
// Requests arrive late or not at all, replies get lost, processes freeze, thaw, crash
// and lose their leases, leases end early, and Redis forgets everything once.
//
// Time is abstract: what takes a ttl may happen only when each process that runs has done what
// it does within a ttl. Outside the model lie the limits that I1 states itself: the
// instructions a thawed process runs before it looks at its deadline, and what a
// process that has not yet noticed the loss of its own lease claims in an emptied
// Redis; and a false death by gossip at the very moment a lease ends early.

// rule is a protecting rule that the model can do without, to see it fail.
type rule int

const (
	allRules        rule = iota
	deadline             // handlers stop before the lease can run out, also after a thaw
	noRevival            // a renewal extends a lease only if it is there
	leaseCheck           // seize only what has no lease
	lockDelay            // a missing lease alone is no proof: wait a ttl, or know better
	fencedAck            // an ack names its fence
	staleClaim           // a claim names the fence it read
	quietRelease         // release only when no handler runs
	quietSuccession      // the next instance claims only when no handler runs
	absentIsHeld         // in an emptied Redis an absent claim counts as held for a ttl
	wanted               // who waits for a shard asks the holder, who gives up a claim it does not know of
	ruleCount
)

var ruleNames = [...]string{"all rules", "deadline", "no revival", "lease check", "lock delay", "fenced ack", "stale claim",
	"quiet release", "quiet succession", "absent is held", "wanted"}

type life uint8

const (
	up life = iota
	frozen
	crashed
)

const (
	maxFence    = 3
	maxInstance = 2
	maxFaults   = 2 // in one story; without the limit, too, all 2.3 million states have been visited
)

// proc is a process.
type proc struct {
	life     life
	instance uint8 // the current instance
	lease    bool  // its lease is in Redis
	fit      bool  // it believes in its lease
	knows    bool  // it knows the plan by which the shard is B's; before it is A's
	holds    uint8 // the fence of the claim it knows to hold, 0 = none
	running  uint8 // the fence of the handler call that runs, 0 = none
	old      bool  // a handler call of an earlier instance still runs
	claiming bool  // it waits for the outcome of a claim
	request  uint8 // a claim on its way: 1 + the fence it read, 0 = none
	by       uint8 // the instance that sent it
	ack      uint8 // an ack on its way: the fence of its call
	missing  uint8 // the instance of the other whose lease it has seen missing for a ttl, 0 = none
}

// claims is a state of the model.
type claims struct {
	p       [2]proc
	owner   uint8 // 1 + the process, 0 = none
	by      uint8 // the owner's instance
	fence   uint8
	flight  bool // the job is in flight
	done    bool
	wiped   bool // Redis has forgotten everything
	ended   bool // a lease has ended early
	faults  uint8
	overrun bool // an ack of an overtaken owner was taken
}

// claimsModel returns the model without one rule.
func claimsModel(without rule) explore.Model[claims] {
	start := claims{fence: 1}
	for i := range start.p {
		start.p[i] = proc{instance: 1, lease: true, fit: true}
	}
	return explore.Model[claims]{
		Start: start,
		Steps: func(s claims) []explore.Event[claims] {
			var b branches
			if s.done {
				return nil
			}
			for i := range s.p {
				b.network(s, i, without)
				b.process(s, i, without)
				b.observe(s, i)
				b.faults(s, i, without)
			}
			return b
		},
		Wrong: claims.wrong,
		Goals: []explore.Goal[claims]{{Is: claims.good}},
	}
}

func (s claims) wrong() string {
	runs := 0
	for _, p := range s.p {
		if p.life != up {
			continue
		}
		if p.running > 0 {
			runs++
		}
		if p.old {
			runs++
		}
	}
	switch {
	case runs > 1:
		return "I1: two handlers run"
	case s.overrun:
		return "I1: the ack of an overtaken owner counted"
	}
	return ""
}

// good: the job is done, or a process works on it, or B, whom the plan names, cannot,
// or the model's bounds are met.
func (s claims) good() bool {
	for i, p := range s.p {
		if p.life == up && p.fit && p.holds == s.fence && s.owner == uint8(i+1) {
			return true
		}
	}
	b := s.p[1]
	return s.done || s.fence >= maxFence || b.instance == maxInstance
}

func TestClaimsModel(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	for without := allRules; without < ruleCount; without++ {
		t.Run(ruleNames[without], func(t *testing.T) {
			got := explore.Explore(claimsModel(without))
			switch {
			case without == allRules && got.Wrong != "":
				t.Errorf("%d states: %s", got.States, got)
			case without == allRules:
				t.Logf("%d states visited", got.States)
			case got.Wrong == "":
				t.Errorf("without this rule: %d states and nothing wrong, want an objection", got.States)
			default:
				t.Logf("without this rule, after %d states: %s", got.States, got)
			}
		})
	}
}
