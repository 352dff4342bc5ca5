package rebalance

import "time"

// audience tells a leader whether it is heard. A leader that most live processes cannot
// hear, because its certificate is no good or a wall stands between them, would keep them
// all without a leader: record and mark are its own, so nobody founds another group.
type audience struct {
	patience time.Duration // how long most may be deaf without one more that hears
	most     int           // how many have heard at once, itself included
	since    time.Time     // when they became that many, or were no minority
}

// lost reports whether most of the live processes do not follow the leader, and no more
// of them than before, for the patience. Two processes never lose each other: neither
// knows which of them is wrong.
func (u *audience) lost(now time.Time, peers []Peer, leader string) bool {
	hearing, deaf := 1, 0
	for _, p := range peers {
		switch {
		case !p.Leased || p.Boot == bootOf(leader):
		case p.Superseded || p.Doubted: // it may be dead already, under a lease that has not run out
		case p.Seat.Leader == leader:
			hearing++
		default:
			deaf++
		}
	}
	if deaf <= hearing || hearing > u.most {
		u.most, u.since = hearing, now
	}
	return now.Sub(u.since) >= u.patience
}

// abdicate gives the group up: its voter is gone with its server, so others elect a leader, or
// found a new group as soon as the mark has run out. This process lets them.
func (a *Agent) abdicate(now time.Time, why string) error {
	a.log.Warn(why, "server", a.server.id)
	a.shy = now.Add(8 * a.cfg.TTL)
	a.k++
	return a.start(serverID(a.cfg.Boot, recordOf(a.server.id), a.k), nil)
}
