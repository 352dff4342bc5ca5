package rebalance

import "time"

// action is what a process does about the cluster record.
type action int

const (
	stay    action = iota // go on
	join                  // drop the Raft server, start one under the record, wait to be added
	found                 // there is no record: create one and bootstrap
	rebear                // the record's group is lost: replace the record and bootstrap
	restore               // there is no record, but this process leads: write its own back
	resume                // the record is one this process wrote itself: bootstrap it
)

// outlook is all that decide looks at.
type outlook struct {
	outside      bool // it could not read what its group wrote: it takes part in nothing
	ttl          time.Duration
	record       *record
	minted       string        // the server id this process offered to bootstrap and has not used
	server       string        // the id of its Raft server, "" if none
	leading      bool          // its Raft server leads
	leader       bool          // its Raft server knows a leader
	peerLeader   bool          // another process says that it knows a leader
	shy          bool          // nobody heard it when it led: it lets another process found
	young        bool          // it began lately, and another one has been there for longer
	leased       bool          // it has a live lease; without one it changes nothing
	marked       bool          // the leader's mark is there
	recordGone   time.Duration // how long there has been no record
	markGone     time.Duration // how long there has been no mark
	patience     time.Duration // how long a mark may be missing while enough voters live
	livingVoters int           // voters of the record whose process has a live lease
	livingFewer  int           // likewise of those on the smaller side of a step
}

// decide is the rule of bootstrap and rebirth. Whatever several processes decide at
// once, the record's compare-and-set lets one through.
func decide(o outlook) action {
	if o.outside {
		return stay
	}
	if o.record == nil {
		return decideWithout(o)
	}
	if recordOf(o.server) != o.record.ID {
		if len(o.record.Voters) == 1 && o.record.Voters[0] == o.minted {
			return resume // the answer to our own compare-and-set was lost
		}
		return join
	}
	switch {
	case o.marked || o.leading || o.shy || o.young || !o.leased:
		return stay
	case o.livingVoters < len(o.record.Voters)/2+1:
		return rebear
	case len(o.record.Fewer) > 0 && o.livingFewer < len(o.record.Fewer)/2+1 && o.markGone >= o.ttl/2:
		return rebear // if Raft has made the step they would have elected a leader by now
	case o.markGone >= o.patience:
		return rebear
	}
	return stay
}

func decideWithout(o outlook) action {
	wait := time.Duration(0)
	switch {
	case o.leading:
		if !o.leased {
			return stay
		}
		return restore
	case o.leader:
		wait = 2 * o.ttl // the leader should write it back, if it can reach the keeper
	case o.peerLeader:
		wait = o.ttl
	}
	if !o.leased || o.shy || o.recordGone < wait {
		return stay
	}
	return found
}

// living counts the voters of a record whose process has a live lease and has not
// dropped that server.
func living(voters []string, peers []Peer) int {
	n := 0
	for _, voter := range voters {
		for _, p := range peers {
			dropped := recordOf(p.Seat.Server) == recordOf(voter) && p.Seat.Server != voter
			if p.Leased && p.Boot == bootOf(voter) && !dropped {
				n++
				break
			}
		}
	}
	return n
}
