//go:build linux

package e2e

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cutOff rewrites a history as if its process had died when it froze, and another one
// of the same name had lived on: see withoutCutOff. It returns how many calls that are.
func (r *rig) cutOff(file string, p *process, frozen time.Duration) (cut int) {
	r.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	text, cut = withoutCutOff(text, frozen)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := r.notes.Death(strconv.Itoa(p.pid()), frozen, frozen); err != nil {
		r.t.Fatal(err)
	}
	return cut
}

// withoutCutOff takes from a process's history what the stated limit of I1 allows it to do after a
// freeze:
//   - The end of a call that was under way.
//   - A call that had passed the node's last look at the lease, but not begun: a few instructions
//     lie between. It begins after the thaw, under the fence that its shard had before, and it is
//     told to stop. Only the first one of a shard can be such a call, and only if the shard had
//     none under way: a lane that comes out of a call looks at the lease again.
func withoutCutOff(text []byte, frozen time.Duration) (kept []byte, cut int) {
	type call struct{ began, shard, fence, end string } // shard is its queue and number; end the kind of its last line
	var calls []*call
	byBegan := map[string]*call{}
	lines := bytes.Split(text, []byte("\n"))
	for _, line := range lines {
		switch w := words(line); {
		case w.kind == "start" && byBegan[w.at(1)] == nil:
			c := &call{began: w.at(1), shard: w.at(3) + "/" + w.at(4), fence: w.at(5)}
			byBegan[c.began], calls = c, append(calls, c)
		case w.ended() && byBegan[w.at(3)] != nil:
			c := byBegan[w.at(3)]
			c.end = w.kind
			if w.nanos(3) < frozen && w.nanos(1) > frozen {
				c.end = "cut off"
			}
		}
	}
	fences, busy, unbegun := map[string]string{}, map[string]bool{}, map[string]bool{}
	slices.SortStableFunc(calls, func(a, b *call) int { return int(words(a.began).nanos(0) - words(b.began).nanos(0)) })
	for _, c := range calls {
		switch before := words(c.began).nanos(0) < frozen; {
		case before:
			fences[c.shard] = c.fence
			busy[c.shard] = busy[c.shard] || c.end == "cut off"
		case fences[c.shard] == c.fence && !busy[c.shard] && c.end == "fail":
			unbegun[c.began] = true
			fallthrough
		default:
			busy[c.shard] = true // the next one is no first one
		}
	}
	torn := "" // the call whose further lines go with its first
	for _, line := range lines {
		w := words(line)
		if w.kind != "more" {
			torn = ""
		}
		switch {
		case w.ended() && w.nanos(1) > frozen && w.nanos(3) < frozen, w.ended() && unbegun[w.at(3)]:
			cut++
		case w.kind == "start" && unbegun[w.at(1)]:
			torn = w.at(1)
		case torn == "":
			kept = append(append(kept, line...), '\n')
		}
	}
	return bytes.TrimSuffix(kept, []byte("\n")), cut
}

// splitLine is a line of a history taken apart, as far as withoutCutOff asks: names of queues have
// no blanks.
type splitLine struct {
	kind  string
	words []string
}

func words[T string | []byte](line T) splitLine {
	w := strings.Fields(string(line))
	if len(w) == 0 {
		return splitLine{}
	}
	return splitLine{kind: w[0], words: w}
}

func (l splitLine) at(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

func (l splitLine) nanos(i int) time.Duration {
	n, _ := strconv.ParseInt(l.at(i), 10, 64) // a torn line: the judge tells of it
	return time.Duration(n)
}

func (l splitLine) ended() bool { return (l.kind == "end" || l.kind == "fail") && len(l.words) > 5 }

// TestCutOffExcusesOnlyTheFreeze checks that a freeze excuses only its own calls in the history of a process.
func TestCutOffExcusesOnlyTheFreeze(t *testing.T) {
	const frozen = 100
	start := func(began, shard, fence string) string {
		return "start " + began + ` "7" "q" ` + shard + " " + fence + ` 1 "an id" 1 1:a .`
	}
	end := func(kind, at, began string) string { return kind + " " + at + ` "7" ` + began + ` "q" "an id" .` }
	before := []string{start("50", "1", "900"), end("end", "60", "50")}
	tests := map[string]struct {
		then []string // after before
		cut  int
		kept int // lines of then
	}{
		"nothing":                        {nil, 0, 0},
		"a call under way":               {[]string{start("90", "1", "900"), end("end", "200", "90")}, 1, 1},
		"its lane goes on":               {[]string{start("90", "1", "900"), end("end", "200", "90"), start("201", "1", "900"), end("fail", "202", "201")}, 1, 3},
		"a call not begun":               {[]string{start("200", "1", "900"), `more 200 "7" "q" "an id" 2:b .`, end("fail", "201", "200")}, 1, 0},
		"a call not begun that succeeds": {[]string{start("200", "1", "900"), end("end", "201", "200")}, 0, 2},
		"a second one":                   {[]string{start("200", "1", "900"), end("fail", "201", "200"), start("202", "1", "900"), end("fail", "203", "202")}, 1, 2},
		"the next claim":                 {[]string{start("200", "1", "950"), end("fail", "201", "200")}, 0, 2},
		"a shard never worked in before": {[]string{start("200", "2", "900"), end("fail", "201", "200")}, 0, 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := strings.Join(append(slices.Clone(before), test.then...), "\n")
			kept, cut := withoutCutOff([]byte(text), frozen)
			if got := strings.Count(string(kept), "\n") + 1 - len(before); cut != test.cut || got != test.kept {
				t.Errorf("got %d cut off and %d lines kept, want %d and %d:\n%s", cut, got, test.cut, test.kept, kept)
			}
		})
	}
}
