package rebalance

import (
	"maps"
	"time"
)

// A process that dies soon after each start must not keep the shards of its name, nor be
// given others: each life would be too short to serve them and long enough to hold them.
// One restart says nothing. A process that died before it had lived for 2 ttl has crashed at
// its start, and then a process that starts has to live for 2 ttl before it is planned for:
// one of the same name for as long as the crash is remembered, one of another name, as a
// fresh container has, for a shorter while.

// lives knows how long processes have been there, and which of them crashed at their start.
// Every process watches, so that a new leader knows already.
type lives struct {
	ttl     time.Duration
	seen    map[string]presence // by boot; nil before the first look
	crashes map[string]crash    // by boot
}

// presence is a process that is there.
type presence struct {
	name  string
	first time.Time // when it was first seen; zero for one that was there at the first look
	left  bool      // it was draining: its end is no crash
}

// crash is the end of a process soon after its start.
type crash struct {
	name string
	at   time.Time // when it was noticed
}

// trialTTLs is how long a process must have lived, in ttls, if one of its kind crashed.
// Crashes are remembered, in ttls: for processes of the same name, and of any name.
const (
	trialTTLs      = 2
	sameNameTTLs   = 100
	othersNameTTLs = 10
)

// observe takes the processes as they are now, and says of each what it knows.
func (l *lives) observe(now time.Time, peers []Peer) {
	atFirst := l.seen == nil
	seen := make(map[string]presence, len(peers))
	for _, p := range peers {
		was, known := l.seen[p.Boot]
		if !known && !p.Leased {
			continue // gossip alone knows of it
		}
		if !known && !atFirst {
			was.first = now
		}
		was.name, was.left = p.Name, p.Draining
		seen[p.Boot] = was
		switch {
		case p.Superseded: // the process under its name is another one now
			l.ended(now, p.Boot, was)
		case p.Leased:
			delete(l.crashes, p.Boot) // it was out of sight and is back
		}
	}
	for boot, was := range l.seen {
		if _, there := seen[boot]; !there {
			l.ended(now, boot, was)
		}
	}
	l.seen = seen
	maps.DeleteFunc(l.crashes, func(_ string, c crash) bool { return now.Sub(c.at) > sameNameTTLs*l.ttl })
	for i := range peers {
		l.judge(now, &peers[i])
	}
}

// ended notes the end of a process, if it was a crash at its start. A lease is there for up
// to a ttl longer than its process.
func (l *lives) ended(now time.Time, boot string, was presence) {
	if _, noted := l.crashes[boot]; noted || was.left || now.Sub(was.first) >= (trialTTLs+1)*l.ttl {
		return
	}
	if l.crashes == nil {
		l.crashes = map[string]crash{}
	}
	l.crashes[boot] = crash{was.name, now}
}

// judge fills in what only the watch over lives knows of a process.
func (l *lives) judge(now time.Time, p *Peer) {
	was, known := l.seen[p.Boot]
	if !known {
		return
	}
	if p.Young = now.Sub(was.first) < trialTTLs*l.ttl; !p.Young {
		return
	}
	for boot, c := range l.crashes {
		if boot == p.Boot {
			continue
		}
		p.OnTrial = p.OnTrial || c.name == p.Name
		p.Doubted = p.Doubted || c.name == p.Name || now.Sub(c.at) < othersNameTTLs*l.ttl
	}
}
