package workflow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
)

var testTime = time.UnixMilli(1_800_000_000_000)

// ended returns the end of a member of the workflow that began at testTime, as Redis writes it.
func ended(end string, serial int) event {
	m := member{Serial: serial, Name: fmt.Sprint("job ", serial)}
	e, err := parseEvent([]byte(end + " " + m.words(testTime.UnixMilli())))
	if err != nil {
		panic(err)
	}
	return e
}

// ask returns a message. Each job is a member, after the places in its list.
func ask(kind string, open bool, jobs ...[]int) event {
	m := message{Kind: kind, Digest: fmt.Sprint(kind, len(jobs)), Open: open, Began: testTime.UnixMilli()}
	for i, after := range jobs {
		m.Jobs = append(m.Jobs, member{push: push{Queue: "q", ID: fmt.Sprint("id", i)}, Name: fmt.Sprint("job ", i+1), After: after})
	}
	if kind == kindStart {
		m.Done, m.Dead = &push{Queue: "q", ID: "DONE"}, &push{Queue: "q", ID: "DEAD"}
	}
	return event{message: m}
}

// told returns what an outcome sends: serials of members, DONE, DEAD, and the kinds of timers.
func told(o outcome) string {
	var words []string
	for _, m := range o.members {
		words = append(words, fmt.Sprint(m.Serial))
	}
	for _, p := range o.pushes {
		kind, _, _ := strings.Cut(p.ID, " ")
		words = append(words, kind)
	}
	for _, place := range slices.Sorted(maps.Keys(o.refused)) {
		words = append(words, "refused", fmt.Sprint(place))
	}
	return strings.Join(words, " ")
}

func TestStep(t *testing.T) {
	t.Parallel()
	none := []int(nil)
	two := ask(kindStart, false, none, none)
	for name, runs := range map[string][]struct {
		events []event
		want   string
	}{
		"all done":             {{[]event{two}, "1 2"}, {[]event{ended("done", 2)}, ""}, {[]event{ended("done", 1)}, "DONE forget"}},
		"at once":              {{[]event{two}, "1 2"}, {[]event{ended("done", 2), ended("done", 1)}, "DONE forget"}},
		"empty":                {{[]event{ask(kindStart, false)}, "DONE forget"}},
		"empty and open":       {{[]event{ask(kindStart, true)}, ""}, {[]event{ask(kindClose, false)}, "DONE forget"}, {[]event{ask(kindClose, false)}, ""}},
		"started twice":        {{[]event{two, two}, "1 2"}, {[]event{two}, ""}, {[]event{ask(kindStart, false, none)}, ""}},
		"one dies":             {{[]event{two}, "1 2"}, {[]event{ended("buried", 1)}, ""}, {[]event{ended("done", 2)}, "DEAD forget"}, {[]event{ended("done", 1)}, "DONE"}},
		"dies twice":           {{[]event{two}, "1 2"}, {[]event{ended("buried", 1)}, ""}, {[]event{ended("deleted", 1)}, ""}, {[]event{ended("expired", 2)}, "DEAD forget"}, {[]event{ended("buried", 2)}, ""}},
		"requeued before":      {{[]event{two}, "1 2"}, {[]event{ended("buried", 1)}, ""}, {[]event{ended("done", 1)}, ""}, {[]event{ended("done", 2)}, "DONE forget"}},
		"after":                {{[]event{ask(kindStart, false, none, []int{0}, []int{0, 1}, none)}, "1 4"}, {[]event{ended("done", 1)}, "2"}, {[]event{ended("done", 4)}, ""}, {[]event{ended("done", 2)}, "3"}, {[]event{ended("done", 3)}, "DONE forget"}},
		"after a dead one":     {{[]event{ask(kindStart, false, none, []int{0})}, "1"}, {[]event{ended("buried", 1)}, "DEAD forget"}, {[]event{ended("done", 1)}, "2"}, {[]event{ended("done", 2)}, "DONE"}},
		"add":                  {{[]event{ask(kindStart, true, none)}, "1"}, {[]event{ended("done", 1)}, ""}, {[]event{ask(kindAdd, false, none, []int{0})}, "2"}, {[]event{ask(kindAdd, false, none, []int{0})}, ""}, {[]event{ended("done", 2), ask(kindClose, false)}, "3"}, {[]event{ended("done", 3)}, "DONE forget"}},
		"open does not die":    {{[]event{ask(kindStart, true, none)}, "1"}, {[]event{ended("buried", 1)}, ""}, {[]event{ask(kindClose, false)}, "DEAD forget"}},
		"add to none":          {{[]event{ask(kindAdd, false, none)}, "refused 0"}},
		"add to a closed one":  {{[]event{two}, "1 2"}, {[]event{ended("done", 1), ask(kindAdd, false, none)}, "refused 1"}, {[]event{ended("done", 1), ended("done", 2)}, "DONE forget"}},
		"added before":         {{[]event{ask(kindStart, true)}, ""}, {[]event{ask(kindAdd, false, none), ask(kindClose, false)}, "1"}, {[]event{ask(kindAdd, false, none), ended("done", 1)}, "DONE forget"}, {[]event{ask(kindAdd, false, none)}, ""}},
		"cancel":               {{[]event{ask(kindStart, false, none, []int{0})}, "1"}, {[]event{ask(kindCancel, false)}, "forget"}, {[]event{ended("done", 1)}, ""}},
		"deadline":             {{[]event{two}, "1 2"}, {[]event{ask(kindDeadline, false)}, "DEAD forget"}, {[]event{ended("done", 1)}, ""}, {[]event{ended("done", 2)}, "DONE"}},
		"deadline of an ended": {{[]event{ask(kindStart, false)}, "DONE forget"}, {[]event{ask(kindDeadline, false)}, ""}},
		"nothing":              {{[]event{ended("done", 1), ask(kindClose, false), ask(kindDeadline, false), ask(kindForget, false), ask(kindCancel, false)}, ""}},
	} {
		var s *state
		for i, run := range runs {
			was, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			o := step("w", s, run.events, testTime)
			if got := told(o); got != run.want {
				t.Errorf("%s, run %d: got %q, want %q; the state is %+v", name, i+1, got, run.want, o.state)
			}
			if s = o.state; len(o.refused) > 0 { // the state stays, and the other events come again
				if s = nil; string(was) != "null" {
					s, err = readState(was)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestStepOfATimer checks that timers belong to one start, and how long a state is kept.
func TestStepOfATimer(t *testing.T) {
	t.Parallel()
	start := ask(kindStart, false)
	start.DeadlineMs = 5000
	o := step("w", nil, []event{start}, testTime)
	if got := told(o); got != "deadline DONE forget" || o.pushes[0].At != testTime.Add(5*time.Second).UnixMicro() || o.pushes[2].At != testTime.Add(keepFor).UnixMicro() {
		t.Fatalf("got %s, %+v", got, o.pushes)
	}
	if id, ok := ofHelper(o.pushes[0].ID); id != "w" || !ok || o.pushes[0].Queue != "lowkiq.workflows" {
		t.Errorf("got %s %v of %+v", id, ok, o.pushes[0])
	}
	forget := ask(kindForget, false)
	forget.Changed = testTime.UnixMilli()
	other := forget
	other.Began++
	if o := step("w", o.state, []event{other}, testTime.Add(keepFor)); o.state == nil {
		t.Error("the timer of another start deletes the state")
	}
	// The clock of Redis, which says when a timer is due, may be ahead of the clock of the node.
	if o := step("w", o.state, []event{forget}, testTime.Add(keepFor-time.Hour)); o.state != nil || told(o) != "" {
		t.Errorf("got %+v, want no state", o)
	}
	// A dead workflow that somebody works on is kept for longer.
	o = step("w", nil, []event{ask(kindStart, false, nil, nil)}, testTime)
	o = step("w", o.state, []event{ended("buried", 1), ended("buried", 2)}, testTime)
	o = step("w", o.state, []event{ended("done", 1)}, testTime.Add(time.Hour))
	o = step("w", o.state, []event{forget}, testTime.Add(keepFor))
	if o.state == nil || told(o) != "forget" || o.pushes[0].At != testTime.Add(time.Hour+keepFor).UnixMicro() {
		t.Fatalf("got %+v, want a later timer", o)
	}
	// A new workflow does not count the ends of an earlier one.
	late := ended("done", 1)
	late.began--
	o = step("w", nil, []event{ask(kindStart, false, nil)}, testTime)
	if o = step("w", o.state, []event{late}, testTime); told(o) != "" || o.state.Done != 0 {
		t.Errorf("got %+v, want nothing to be counted", o.state)
	}
}

// TestStatusOfACancel checks that a cancelled workflow counts the members that it has dropped, and nothing as running.
func TestStatusOfACancel(t *testing.T) {
	t.Parallel()
	o := step("w", nil, []event{ask(kindStart, false, nil, []int{0}, []int{0})}, testTime)
	o = step("w", o.state, []event{ask(kindCancel, false)}, testTime)
	if s := o.state.status("w"); s.State != StateCancelled || s.Dropped != 2 || s.Running() != 0 || s.Waiting != 0 {
		t.Errorf("got %+v, %d running, want 2 dropped and nothing running", s, s.Running())
	}
}

// TestShownMembers checks that people see queue and id of dead and waiting members, also of named ones.
func TestShownMembers(t *testing.T) {
	t.Parallel()
	start := ask(kindStart, false, nil, nil, []int{0, 1}, []int{2})
	start.Jobs[1].Name = "q/id1"
	end := func(end string, serial int, name string) event {
		e, err := parseEvent([]byte(end + " " + (&member{Serial: serial, Name: name}).words(testTime.UnixMilli())))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	o := step("w", nil, []event{start}, testTime)
	o = step("w", o.state, []event{end("buried", 1, "job 1"), end("buried", 2, "q/id1")}, testTime)
	dead, waiting := o.state.shownMembers()
	if got := fmt.Sprint(dead); got != "[{q id0 job 1 []} {q id1 q/id1 []}]" {
		t.Errorf("dead: got %s", got)
	}
	if got := fmt.Sprint(waiting); got != "[{q id2 job 3 [job 1 q/id1]} {q id3 job 4 [job 3]}]" {
		t.Errorf("waiting: got %s", got)
	}
	o = step("w", o.state, []event{end("done", 1, "job 1")}, testTime)
	if dead, _ := o.state.shownMembers(); len(dead) != 1 || len(o.state.Left) != 0 {
		t.Errorf("a member that is done stays: got %v, %v", dead, o.state.Left)
	}
}

// TestStepOfManyDead checks that the state stays small, and Done exact, with more dead members than it names.
func TestStepOfManyDead(t *testing.T) {
	t.Parallel()
	const n = 5000
	o := step("w", nil, []event{ask(kindStart, false, make([][]int, n)...)}, testTime)
	var dead, done []event
	for i := range n {
		dead, done = append(dead, ended("buried", i+1)), append(done, ended("done", i+1))
	}
	o = step("w", o.state, dead, testTime)
	if text, err := json.Marshal(o.state); err != nil || len(text) > 16<<10 || told(o) != "DEAD forget" || o.state.dead() != n || len(o.state.status("w").DeadNames) != 10 {
		t.Fatalf("got %d bytes, %v, %s, %d dead", len(text), err, told(o), o.state.dead())
	}
	slices.Reverse(done)
	o = step("w", o.state, done[:n-1], testTime)
	if told(o) != "" || o.state.dead() != 1 {
		t.Fatalf("got %s and %d dead, want 1", told(o), o.state.dead())
	}
	if o = step("w", o.state, done[n-1:], testTime); told(o) != "DONE" {
		t.Errorf("got %q, want DONE", told(o))
	}
}

// TestStepOfTheSameDead checks that a member that is requeued and dies again counts once, also without a name in the state.
func TestStepOfTheSameDead(t *testing.T) {
	t.Parallel()
	o := step("w", nil, []event{ask(kindStart, false, make([][]int, 500)...)}, testTime)
	var dead []event
	for i := range 300 {
		e := ended("buried", i+1)
		e.name = strings.Repeat("n", MaxName)
		dead = append(dead, e)
	}
	for range 3 {
		o = step("w", o.state, dead, testTime)
		if told(o) != "" || o.state.dead() != 300 || o.state.running() != 200 {
			t.Fatalf("got %q, %d dead and %d running; want 300 dead and 200 running", told(o), o.state.dead(), o.state.running())
		}
	}
}

// TestStateOfAnyNames checks that a state has less than lowkiq.MaxStateBytes, also with names that JSON makes longer.
func TestStateOfAnyNames(t *testing.T) {
	t.Parallel()
	const n = maxSerials + 1000
	for _, letter := range []string{"<", `"`, "a", "é"} {
		start := ask(kindStart, false, make([][]int, n)...)
		start.Jobs[n-1].After, start.Jobs[n-1].Data = []int{0}, make([]byte, 35<<10)
		var dead []event
		for i := range start.Jobs {
			start.Jobs[i].Name = strings.Repeat(letter, MaxName/len(letter))
			e := ended("buried", i+1)
			e.name = start.Jobs[i].Name
			dead = append(dead, e)
		}
		o := step("w", nil, []event{start}, testTime)
		o = step("w", o.state, dead[:n-1], testTime)
		if text, err := json.Marshal(o.state); err != nil || len(text) > lowkiq.MaxStateBytes || o.state.dead() != n-1 {
			t.Errorf("%s: got a state of %d bytes, %v, with %d dead", letter, len(text), err, o.state.dead())
		}
	}
}

// TestStepRefusesTooMuch checks that what waits has a bound.
func TestStepRefusesTooMuch(t *testing.T) {
	t.Parallel()
	add := ask(kindAdd, false, nil, []int{0})
	add.Jobs[1].Data = make([]byte, 20<<10)
	o := step("w", nil, []event{ask(kindStart, true)}, testTime)
	o = step("w", o.state, []event{add}, testTime)
	again := add
	again.Digest = "another"
	if got := step("w", o.state, []event{ask(kindDeadline, false), again}, testTime); told(got) != "refused 1" || !strings.Contains(got.refused[1].Error(), "at most 49152 are allowed") {
		t.Errorf("got %q, %v", told(got), got.refused)
	}
}

// TestStepProperty draws workflows whose members end, die, are requeued, and whose events come in any order.
func TestStepProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, checkDrawnWorkflow)
}

func checkDrawnWorkflow(t *rapid.T) {
	const idle, running, dead, done = 0, 1, 2, 3
	members := []int{0} // the state of each, by serial
	var after [][]int
	var pending []event // on their way to the workflow
	var s *state
	open := rapid.Bool().Draw(t, "open")
	closed, cancelled, late := !open, false, false
	tells, draws := map[string]int{}, 0
	draw := func(kind string) event {
		jobs := make([][]int, rapid.IntRange(0, 6).Draw(t, "jobs"))
		first := len(members)
		for i := range jobs {
			if i > 0 {
				jobs[i] = rapid.SliceOfNDistinct(rapid.IntRange(0, i-1), 0, min(i, 2), rapid.ID[int]).Draw(t, "after")
			}
			members = append(members, idle)
			var serials []int
			for _, place := range jobs[i] {
				serials = append(serials, first+place)
			}
			after = append(after, serials)
		}
		e := ask(kind, open, jobs...)
		draws++
		e.Digest = fmt.Sprint(kind, draws)
		return e
	}
	of := func(in int) (serials []int) {
		for serial := 1; serial < len(members); serial++ {
			if members[serial] == in {
				serials = append(serials, serial)
			}
		}
		return serials
	}
	run := func(some []event) {
		o := step("w", s, some, testTime)
		s = o.state
		if len(o.refused) > 0 || s == nil {
			t.Fatalf("got %+v", o)
		}
		for _, m := range o.members {
			if members[m.Serial] != idle {
				t.Fatalf("member %d leaves again", m.Serial)
			}
			for _, before := range after[m.Serial-1] {
				if members[before] != done {
					t.Fatalf("member %d leaves before %d is done", m.Serial, before)
				}
			}
			members[m.Serial] = running
		}
		for _, p := range o.pushes {
			tells[p.ID]++
			switch {
			case p.ID == "DONE" && (len(of(done)) != len(members)-1 || !closed || cancelled):
				t.Fatalf("DONE with members %v, closed %v", members, closed)
			case p.ID == "DEAD" && !late && (s.dead() == 0 || s.running() > 0 || !closed): // a requeue is not told
				t.Fatalf("DEAD with members %v, closed %v", members, closed)
			}
		}
		if text, err := json.Marshal(s); err != nil || len(text) > lowkiq.MaxStateBytes {
			t.Fatalf("a state of %d bytes, %v", len(text), err)
		}
	}
	run([]event{draw(kindStart)})
	deliver := func(n int) {
		pending = rapid.Permutation(pending).Draw(t, "order")
		some := pending[:n]
		pending = pending[n:]
		if len(some) > 0 {
			run(some)
		}
	}
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		switch rapid.IntRange(0, 9).Draw(t, "step") {
		case 0:
			if !closed && !cancelled {
				run([]event{draw(kindAdd)})
			}
		case 1:
			if !closed {
				closed = true
				run([]event{ask(kindClose, false)})
			}
		case 2:
			if dead := of(dead); len(dead) > 0 && !slices.ContainsFunc(pending, func(e event) bool { return e.serial == dead[0] }) { // requeued; a queue has its ends in order
				members[dead[0]] = running
			}
		case 3:
			deliver(rapid.IntRange(0, len(pending)).Draw(t, "n"))
		case 4:
			if rapid.IntRange(0, 9).Draw(t, "late") == 0 {
				late = true
				run([]event{ask(kindDeadline, false)})
			}
		case 5:
			if rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
				cancelled = true // a program adds nothing afterwards
				run([]event{ask(kindCancel, false)})
			}
		default:
			if running := of(running); len(running) > 0 {
				serial := rapid.SampledFrom(running).Draw(t, "ends")
				end := rapid.SampledFrom([]string{"done", "done", "done", "buried", "expired", "deleted"}).Draw(t, "end")
				if members[serial] = done; end != "done" {
					members[serial] = dead
				}
				pending = append(pending, ended(end, serial))
			}
		}
	}
	for len(of(running)) > 0 || len(pending) > 0 {
		for _, serial := range of(running) {
			members[serial] = done
			pending = append(pending, ended("done", serial))
		}
		deliver(len(pending))
	}
	if !closed {
		closed = true
		run([]event{ask(kindClose, false)})
	}
	wantDone, wantDead := 0, 0
	switch all := len(of(done)) == len(members)-1; {
	case cancelled:
		wantDone, wantDead = tells["DONE"], tells["DEAD"] // it depends on what came first
	case all:
		wantDone, wantDead = 1, tells["DEAD"]
	default:
		wantDead = 1
	}
	if tells["DONE"] != wantDone || tells["DEAD"] != wantDead || wantDone > 1 || wantDead > 1 {
		t.Fatalf("got %v, want %d DONE and %d DEAD; members %v, %+v", tells, wantDone, wantDead, members, s)
	}
	if !cancelled && (s.Done != len(of(done)) || s.dead() != len(of(dead))) {
		t.Fatalf("counted %d done and %d dead of %v", s.Done, s.dead(), members)
	}
}
