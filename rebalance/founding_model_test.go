package rebalance

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/explore"
)

// This model is the argument for keeping Raft's log and votes in memory. Three
// processes are the voters of record 1; each may drop its Raft and start another
// server at any time, and may replace the record by its own and bootstrap. Every
// record has one term here; a record that two servers win would have two histories
// under the same generations.

// foundingRule is a rule that the model can do without.
type foundingRule int

const (
	allFoundingRules foundingRule = iota
	freshID                       // a server that starts again has a new id, which is no voter's
	comparedRecord                // the record is replaced only if it is still the one read
	shakesHand                    // a connection is for one record and one server id
	foundingRuleCount
)

var foundingRuleNames = [...]string{"all rules", "fresh id", "compared record", "handshake"}

const (
	maxRecord  = 3
	maxServers = 2 // of one process under one record
)

// voter is a process and its Raft server.
type voter struct {
	record  uint8 // the record its server is of
	k       uint8 // counts its servers under the record; the voters of record 1 are those with 0
	vote    uint8 // 1 + the process it voted for, as far as it remembers
	granted uint8 // the votes it has got, a bit per process
	read    uint8 // the record it has read and means to replace, 0 = none
}

type foundings struct {
	p      [3]voter
	record uint8
	winner [maxRecord + 1]uint8 // by record: 1 + the process that won it, 0 = none
	twice  bool                 // a record was won by two servers
}

// foundingsModel returns the model without one rule.
func foundingsModel(without foundingRule) explore.Model[foundings] {
	start := foundings{record: 1}
	for i := range start.p {
		start.p[i].record = 1
	}
	return explore.Model[foundings]{
		Start: start,
		Steps: func(s foundings) []explore.Event[foundings] {
			var events []explore.Event[foundings]
			add := func(what string, i int, next foundings) {
				events = append(events, explore.Event[foundings]{By: 'A' + rune(i), What: what, Next: next})
			}
			for i := range s.p {
				s.elect(i, without, add)
				s.replace(i, without, add)
			}
			return events
		},
		Wrong: func(s foundings) string {
			if s.twice {
				return "two servers won one record"
			}
			return ""
		},
	}
}

// elect: a process asks for votes, gets them, drops its server, follows the record.
func (s foundings) elect(i int, without foundingRule, add func(string, int, foundings)) {
	p := s.p[i]
	if p.record == 1 && p.k == 0 && p.vote == 0 {
		next := s
		next.p[i].vote, next.p[i].granted = uint8(i+1), 1<<i
		add("votes for itself", i, next)
	}
	if p.record == 1 && p.vote == uint8(i+1) {
		for k, q := range s.p {
			counts := q.record == 1 && q.k == 0 || without == shakesHand
			if k == i || q.vote != 0 || !counts {
				continue
			}
			next := s
			next.p[k].vote = uint8(i + 1)
			next.p[i].granted |= 1 << k
			if bits.OnesCount8(next.p[i].granted) >= 2 {
				next = next.win(1, i)
			}
			add(fmt.Sprintf("gets the vote of %c", 'A'+k), i, next)
		}
	}
	if p.k+1 < maxServers {
		next := s
		next.p[i] = voter{record: p.record, k: p.k + 1}
		if without == freshID {
			next.p[i].k = p.k
		}
		add("starts its server again", i, next)
	}
	if p.record != s.record {
		next := s
		next.p[i] = voter{record: s.record, k: 1} // waits to be added
		add("follows the record", i, next)
	}
}

// replace: a process reads the record, and later replaces it and bootstraps.
func (s foundings) replace(i int, without foundingRule, add func(string, int, foundings)) {
	p := s.p[i]
	if p.read == 0 && s.record < maxRecord {
		next := s
		next.p[i].read = s.record
		add("reads the record", i, next)
	}
	if p.read == 0 {
		return
	}
	next := s
	next.p[i].read = 0
	if p.read == s.record || without == comparedRecord {
		next.record = p.read + 1
		next.p[i] = voter{record: next.record}
		next = next.win(next.record, i)
	}
	add("replaces the record it read", i, next)
}

func (s foundings) win(record uint8, i int) foundings {
	winner := uint8(i + 1)
	s.twice = s.twice || s.winner[record] != 0 && s.winner[record] != winner
	s.winner[record] = winner
	return s
}

func TestFoundingsModel(t *testing.T) {
	t.Parallel()
	for without := allFoundingRules; without < foundingRuleCount; without++ {
		t.Run(foundingRuleNames[without], func(t *testing.T) {
			got := explore.Explore(foundingsModel(without))
			switch {
			case without == allFoundingRules && got.Wrong != "":
				t.Errorf("%d states: %s", got.States, got)
			case without == allFoundingRules:
				t.Logf("%d states visited", got.States)
			case got.Wrong == "":
				t.Errorf("without this rule: %d states and nothing wrong, want an objection", got.States)
			default:
				t.Logf("without this rule, after %d states: %s", got.States, got)
			}
		})
	}
}
