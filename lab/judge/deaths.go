package judge

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// life is a run of a process. A death ends it, and a later process may have the same pid.
type life struct {
	process int32
	run     int // the number of deaths before
}

// alive returns the latest time when the note of the death shows that the process was alive, or 0.
func (d death) alive() int64 {
	if d.inherited {
		return 0
	}
	return d.killed
}

// settleCalls gives an end to every call that has none. The end is the last time when the call's process certainly lived,
// by the deaths that the driver noted. If no death was noted, the call stays running and ends with the last event of its
// process.
func (t *table) settleCalls() {
	t.inheritDeaths()
	alive := map[life]int64{}
	for i := range t.calls {
		c := &t.calls[i]
		t.recordAlive(alive, c.process, c.start)
		if c.outcome != running {
			t.recordAlive(alive, c.process, c.end)
		}
	}
	kept := t.calls[:0]
	for _, c := range t.calls {
		if c.outcome == running {
			run := t.countDeaths(c.process, c.start)
			c.end = alive[life{c.process, run}]
			if deaths := t.deaths[c.process]; run < len(deaths) {
				c.end, c.outcome = max(c.end, deaths[run].alive()), interrupted
			}
			if c.outcome == interrupted && c.count != c.want {
				continue // killed while it wrote the start: the handler was not entered
			}
		}
		kept = append(kept, c)
	}
	t.calls = kept
	t.open = nil
}

// inheritDeaths gives the deaths of "p" to its exec children "p/1", "p/2" and so on. They outlive it for a moment, and the
// time of their deaths is not known. All events of such a name belong to one life. inheritDeaths sorts all deaths.
func (t *table) inheritDeaths() {
	for i, name := range t.processes.list {
		parent, _, isChild := strings.Cut(name, "/")
		if of, known := t.processes.index[parent]; isChild && known {
			for _, d := range t.deaths[of] {
				inherited := death{killed: d.killed, reaped: math.MaxInt64, inherited: true}
				t.deaths[int32(i)] = append(t.deaths[int32(i)], inherited)
			}
		}
	}
	for _, deaths := range t.deaths {
		slices.SortFunc(deaths, func(a, b death) int { return cmp.Compare(a.reaped, b.reaped) })
	}
}

// countDeaths counts the deaths of a process before a time.
func (t *table) countDeaths(process int32, at int64) int {
	n := 0
	for _, d := range t.deaths[process] {
		if d.reaped < at {
			n++
		}
	}
	return n
}

func (t *table) recordAlive(alive map[life]int64, process int32, at int64) {
	l := life{process, t.countDeaths(process, at)}
	alive[l] = max(alive[l], at)
}

// diedBetween reports whether a process died, or may have died, between two times.
func (t *table) diedBetween(process int32, from, to int64) bool {
	return slices.ContainsFunc(t.deaths[process], func(d death) bool { return d.reaped >= from && d.killed <= to })
}
