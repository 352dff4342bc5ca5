package rubyqueue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

const most = 1 << 30

// takeAll takes a queue out.
func takeAll(t *testing.T, q *Queue) (all []*Entry) {
	t.Helper()
	ctx := t.Context()
	if _, err := q.BeginRun(ctx); err != nil {
		t.Fatal(err)
	}
	flights, err := q.ReadFlights(ctx)
	if err := errors.Join(err, q.MarkFlights(ctx, flights)); err != nil {
		t.Fatal(err)
	}
	waiting, err := q.ReadWaiting(ctx, 0, most)
	if err != nil {
		t.Fatal(err)
	}
	ids := slices.Sorted(maps.Keys(flights))
	for _, due := range waiting {
		if flights[due.ID] == nil {
			ids = append(ids, due.ID)
		}
	}
	keep := func(entries []*Entry) {
		var numbers []int64
		for _, e := range entries {
			if e != nil {
				numbers = append(numbers, e.Number)
				all = append(all, e)
			}
		}
		if err := q.Forget(ctx, numbers...); err != nil {
			t.Fatal(err)
		}
	}
	for len(ids) > 0 {
		entries, err := q.Take(ctx, ids, flights, most)
		if err != nil {
			t.Fatal(err)
		}
		keep(entries)
		ids = ids[len(entries):]
	}
	for {
		buried, err := q.ReadMorgue(ctx, 0, idsPerScript)
		if err != nil {
			t.Fatal(err)
		}
		if len(buried) == 0 {
			break
		}
		for _, due := range buried {
			ids = append(ids, due.ID)
		}
		for len(ids) > 0 {
			entries, err := q.TakeBuried(ctx, ids, most)
			if err != nil {
				t.Fatal(err)
			}
			keep(entries)
			ids = ids[len(entries):]
		}
	}
	if err := errors.Join(q.SweepSets(ctx), q.EndRun(ctx)); err != nil {
		t.Fatal(err)
	}
	return all
}

// come is what entries come to by rules: jobs, and what the morgue has.
func come(entries []*Entry, r rules) (jobs, morgue map[string]Job) {
	jobs, morgue = map[string]Job{}, map[string]Job{}
	for _, e := range entries {
		into := jobs
		if e.Morgue {
			into = morgue
		}
		if job := r.settleEntry(e); len(job.Payloads) > 0 {
			into[e.ID] = job
		}
	}
	return jobs, morgue
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// expected is what Ruby says a job is, but that of equal payloads the minimum of the scores holds.
func expected(t *testing.T, j *rubystates.Job, morgue bool) Job {
	want := Job{Retries: -1}
	if want.At = number(t, j.PerformIn+j.UpdatedAt); !morgue {
		want.Retries = number(t, j.RetryCount.String())
	}
	if text, ok := j.Failure(); ok {
		want.Error = &text
	}
	for _, p := range j.Payloads {
		score := number(t, p.Score)
		if p.InFlightScore != nil {
			score = min(score, number(t, *p.InFlightScore))
		}
		want.Payloads = append(want.Payloads, Payload{score, p.Bytes})
	}
	want.Payloads = allRules.unitePiles(want.Payloads, nil) // in order of these scores
	return want
}

// differences compares what was taken with what Ruby says.
func differences(t *testing.T, got map[string]Job, want []rubystates.Job, morgue bool, state *rubystates.State) (found []string) {
	seen := map[string]bool{}
	for i := range want {
		id := want[i].Raw()
		seen[id] = true
		w := expected(t, &want[i], morgue)
		g, ok := got[id]
		if !ok {
			found = append(found, fmt.Sprintf("%q is missing", id))
			continue
		}
		if state.ErrorCodec == "reverse" && g.Error != nil {
			turned := reverse(*g.Error)
			g.Error = &turned
		}
		if want[i].Redumped || state.Family == "redumped" {
			g.Payloads, w.Payloads = nil, nil // Ruby dumps other bytes than it loaded
		}
		if g, w := said(g), said(w); g != w {
			found = append(found, fmt.Sprintf("%q is\n%s, want\n%s", id, g, w))
		}
	}
	for id := range got {
		if !seen[id] {
			found = append(found, fmt.Sprintf("%q is not known to Ruby", id))
		}
	}
	return found
}

func reverse(text string) string {
	runes := []rune(text)
	slices.Reverse(runes)
	return string(runes)
}

func said(j Job) string {
	failure := "none"
	if j.Error != nil {
		failure = strconv.Quote(*j.Error)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "due %v, retries %v, error %s:", j.At, j.Retries, failure)
	for _, p := range j.Payloads {
		fmt.Fprintf(&b, " %v %.60q", p.Score, p.Data)
	}
	return b.String()
}

// some are every fifth of the states; with -short fewer, and for make test-all each.
func some(states []rubystates.State) []rubystates.State {
	var few []rubystates.State
	for i := 0; i < len(states); i += tier.Of(17, 5, 1) {
		few = append(few, states[i])
	}
	return few
}

// window tells the states of a death within a failure, of which Ruby's restore is not the last word.
func window(s *rubystates.State) bool {
	return s.Family == "window_push_back" || s.Family == "window_buried"
}

// A state that is taken out comes to what Ruby itself makes of it.
func TestStatesComeToWhatRubySays(t *testing.T) {
	q := oldRedis(t)
	for _, s := range some(rubystates.LoadAll(t)) {
		old := open(t, q.URL(), s.QueueName, s.Shards)
		load(t, old, &s)
		before := keys(t, old)
		jobs, morgue := come(takeAll(t, old), allRules)
		if !window(&s) {
			for _, d := range differences(t, jobs, s.Expect.Jobs, false, &s) {
				t.Errorf("%s: %s", s.Name, d)
			}
		}
		for _, d := range differences(t, morgue, s.Expect.Morgue, true, &s) {
			t.Errorf("%s: morgue: %s", s.Name, d)
		}
		checkLeft(t, &s, old, before)
		old.Close()
	}
}

// keys are the names of all keys.
func keys(t *testing.T, q *Queue) []string {
	t.Helper()
	names, err := q.db.ForTests().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// checkLeft wants all keys of the queue to be gone but for its counters and what Ruby does not reach either, and
// the keys of others to be there.
func checkLeft(t *testing.T, s *rubystates.State, q *Queue, before []string) {
	t.Helper()
	expect := map[string]bool{q.key("processed"): true, q.key("failed"): true}
	for _, l := range s.Expect.Leftovers {
		j := rubystates.Job{ID: l.ID, IDBase64: l.IDBase64}
		if l.What == "processing:payloads" || l.What == "payloads" {
			expect[q.key(l.What+":"+j.Raw())] = true
		}
	}
	after := keys(t, q)
	for _, name := range after {
		if ours(q, name) && !expect[name] {
			t.Errorf("%s: %q is left", s.Name, name)
		}
	}
	for _, name := range before {
		if !ours(q, name) && !slices.Contains(after, name) {
			t.Errorf("%s: %q is of another queue, and is gone", s.Name, name)
		}
	}
}

// ours tells the queue's keys from those of queues whose names begin with its name.
func ours(q *Queue, name string) bool {
	rest, ok := strings.CutPrefix(name, q.prefix+":")
	if !ok {
		return false
	}
	for _, head := range []string{"all_ids_", "ids_scored_by_perform_in:", "payloads:", "errors", "processing:",
		"processing_length_by_shard", "morgue:", "processed", "failed", "migrate:"} {
		if strings.HasPrefix(rest, head) {
			return true
		}
	}
	return false
}

// windows counts what becomes of the flights that a death left half settled, beside the run that went on.
func windows(t *testing.T, url string, r rules) (lost, kept, other, equal int) {
	for _, s := range some(rubystates.LoadAll(t)) {
		if !window(&s) {
			continue
		}
		old := open(t, url, s.QueueName, s.Shards)
		load(t, old, &s)
		flights, err := old.ReadFlights(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		jobs, _ := come(takeAll(t, old), r)
		want := map[string]Job{}
		for i := range s.ExpectCompleted.Jobs {
			j := &s.ExpectCompleted.Jobs[i]
			want[j.Raw()] = expected(t, j, false)
		}
		for id := range flights {
			g, w := jobs[id], want[id]
			switch {
			case !within(w.Payloads, g.Payloads):
				lost++
			case !within(g.Payloads, w.Payloads):
				kept++
			case len(w.Payloads) > 0 && (g.Retries != w.Retries || g.At != w.At || fmt.Sprint(said(Job{Error: g.Error})) != said(Job{Error: w.Error})):
				other++
			default:
				equal++
			}
		}
		old.Close()
	}
	return lost, kept, other, equal
}

func within(some, all []Payload) bool {
	return !slices.ContainsFunc(some, func(p Payload) bool {
		return !slices.ContainsFunc(all, func(q Payload) bool { return string(p.Data) == string(q.Data) })
	})
}

func TestWindowsLoseNothing(t *testing.T) {
	url := oldRedis(t).URL()
	lost, kept, other, equal := windows(t, url, allRules)
	t.Logf("%d equal, %d keep what was to be buried, %d with another row, %d lost", equal, kept, other, lost)
	if lost != 0 || other != 0 {
		t.Errorf("%d flights lose a payload and %d have another row than the run that went on gave them", lost, other)
	}
}

// Each rule of Settle is found missing by the states.
func TestRulesAreNeeded(t *testing.T) {
	url := oldRedis(t).URL()
	for _, c := range []struct {
		name  string
		rules rules
	}{
		{"of equal payloads the minimum score", rules{flightWins: true, pushedBack: true, buried: true}},
		{"the flight's row", rules{minimumScore: true, pushedBack: true, buried: true}},
		{"a row that was pushed back", rules{minimumScore: true, flightWins: true, buried: true}},
		{"a payload that was buried", rules{minimumScore: true, flightWins: true, pushedBack: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !missed(t, url, c.rules) {
				t.Error("no state tells that the rule is missing")
			}
		})
	}
}

// missed reports whether a state that comes to what it should by all rules does not by these.
func missed(t *testing.T, url string, r rules) bool {
	for _, s := range rubystates.LoadAll(t) {
		want := s.Expect.Jobs
		if window(&s) {
			want = s.ExpectCompleted.Jobs
		}
		if !slices.ContainsFunc(s.Expect.Jobs, func(j rubystates.Job) bool { return j.InFlight }) {
			continue
		}
		old := open(t, url, s.QueueName, s.Shards)
		load(t, old, &s)
		entries := takeAll(t, old)
		old.Close()
		right, _ := come(entries, allRules)
		wrong, _ := come(entries, r)
		if len(differences(t, right, want, false, &s)) == 0 && len(differences(t, wrong, want, false, &s)) > 0 {
			return true
		}
	}
	return false
}
