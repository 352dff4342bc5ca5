package judge

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// life is one run of a process: pids come back, and a death ends a run.
type life struct {
	process int32
	run     int // how many deaths came before
}

// alive is the latest moment at which the death's note shows the process alive; 0
// if it does not.
func (d death) alive() int64 {
	if d.inherited {
		return 0
	}
	return d.killed
}

// settle gives an end to every call that has none, from the deaths that the driver
// noted: the last moment at which the process certainly lived. A call of a process
// whose death was not noted stays running, with the process's last event as its end.
func (t *table) settle() {
	t.inheritDeaths()
	alive := map[life]int64{}
	for i := range t.calls {
		c := &t.calls[i]
		t.seen(alive, c.process, c.start)
		if c.outcome != running {
			t.seen(alive, c.process, c.end)
		}
	}
	kept := t.calls[:0]
	for _, c := range t.calls {
		if c.outcome == running {
			run := t.run(c.process, c.start)
			c.end = alive[life{c.process, run}]
			if deaths := t.deaths[c.process]; run < len(deaths) {
				c.end, c.outcome = max(c.end, deaths[run].alive()), interrupted
			}
			if c.outcome == interrupted && c.count != c.want {
				continue // killed while it noted the start: the handler was never entered
			}
		}
		kept = append(kept, c)
	}
	t.calls = kept
	t.open = nil
}

// inheritDeaths gives the deaths of "p" to "p/1", "p/2" …: its exec children. They
// outlive it for a moment and when they died is not known; all events of such a
// name are of one life. It sorts all deaths.
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

// run counts the deaths of a process before a moment.
func (t *table) run(process int32, at int64) int {
	n := 0
	for _, d := range t.deaths[process] {
		if d.reaped < at {
			n++
		}
	}
	return n
}

func (t *table) seen(alive map[life]int64, process int32, at int64) {
	l := life{process, t.run(process, at)}
	alive[l] = max(alive[l], at)
}

// diedBetween tells whether a process died, or may have died, between two moments.
func (t *table) diedBetween(process int32, from, to int64) bool {
	return slices.ContainsFunc(t.deaths[process], func(d death) bool { return d.reaped >= from && d.killed <= to })
}
