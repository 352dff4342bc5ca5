package judge

import (
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// Each rule: a history that keeps it and one that breaks just it.
func TestCheckEachRule(t *testing.T) {
	a, b := pushes("a", 1, 2, 3), pushes("b", 4)
	equal := slices.Clone(a)
	equal[1].Digest = equal[0].Digest
	equalLoad := loads("a", 1, 3)
	late := slices.Clone(a)
	late[2].At = 100
	// Of equal scores both orders are tried, as nothing but the push tells them apart.
	x, y := lowkiq.Payload{Score: 1, Data: []byte("x")}, lowkiq.Payload{Score: 1, Data: []byte("y")}
	even := func(payloads ...lowkiq.Payload) []Pushed {
		var pushed []Pushed
		for _, p := range payloads {
			pushed = append(pushed, Pushed{Queue: queue, ID: "a", Score: p.Score, Digest: Digest(p.Data)})
		}
		return pushed
	}
	gets := func(start, end int64, payloads ...lowkiq.Payload) *did {
		return &did{process: "p", fence: 1, id: "a", start: start, end: end, payloads: payloads}
	}
	buried := even(x, y)
	buried[0].Optional = true
	free := Config{MaxDuplicates: -1, MaxUncaused: -1}
	tests := []struct {
		name string
		cfg  Config
		run  run
		want []Kind // nil = good
	}{
		{"one by one", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1), ok(2, 3, "a", 2), ok(4, 5, "a", 3)}}, nil},
		{"together", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3)}}, nil},
		{"a failure is repeated", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1).fails(), ok(3, 4, "a", 1, 2, 3)}}, nil},
		{"two ids at once", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{ok(1, 5, "a", 1, 2, 3), ok(2, 3, "b", 4)}}, nil},

		{"overlap", Config{}, run{pushed: a, calls: []*did{ok(1, 5, "a", 1, 2), ok(4, 6, "a", 3)}}, []Kind{Overlap}},
		{"overlap with a long call before the last", Config{}, run{pushed: a, calls: []*did{
			ok(1, 10, "a", 1), ok(2, 3, "a", 2), ok(4, 5, "a", 3)}}, []Kind{Overlap, Overlap}},
		{"overlap across processes", Config{}, run{pushed: a, calls: []*did{
			ok(1, 5, "a", 1, 2), ok(4, 6, "a", 3).by("q", 2)}}, []Kind{Overlap}},
		{"overlap with a call that is killed later", Config{}, run{pushed: a, calls: []*did{
			ok(1, 0, "a", 1), ok(4, 6, "a", 1, 2, 3).by("q", 2)}, deaths: []died{{"p", 5, 7}}}, []Kind{Overlap}},
		{"overlap with a call whose process lived on", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 0, "a", 1), ok(4, 6, "a", 1, 2, 3).by("q", 2), ok(2, 5, "b", 4)}, deaths: []died{{"p", 0, 7}}}, []Kind{Overlap}},
		{"the killed call is over at the kill", Config{}, run{pushed: a, calls: []*did{
			ok(1, 0, "a", 1), ok(5, 6, "a", 1, 2, 3).by("q", 2)}, deaths: []died{{"p", 5, 7}}}, nil},
		{"a pid comes back after its death", Config{}, run{pushed: a, calls: []*did{
			ok(1, 0, "a", 1), ok(8, 9, "a", 1, 2), ok(10, 11, "a", 3)}, deaths: []died{{"p", 5, 7}}}, nil},
		{"a child dies with its parent", Config{}, run{pushed: a, calls: []*did{
			ok(1, 0, "a", 1).by("p/1", 1), ok(6, 9, "a", 1, 2, 3).by("q", 2)}, deaths: []died{{"p", 5, 7}}}, nil},
		{"no death noted", Config{}, run{pushed: a, calls: []*did{
			ok(1, 0, "a", 1), ok(5, 6, "a", 1, 2, 3).by("q", 2)}}, []Kind{Unfinished}},

		{"crowd", Config{ShardConcurrency: 1}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 5, "a", 1, 2, 3), ok(2, 3, "b", 4)}}, []Kind{Crowd}},
		{"two may run at once", Config{ShardConcurrency: 2}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 5, "a", 1, 2, 3), ok(2, 3, "b", 4)}}, nil},
		{"one batch of two ids is no crowd", Config{ShardConcurrency: 1}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 5, "a", 1, 2, 3), ok(1, 5, "b", 4)}}, nil},

		{"stale fence", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 2, "a", 1, 2, 3).by("q", 2), ok(3, 4, "b", 4)}}, []Kind{StaleFence}},
		{"two processes with one fence", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 2, "a", 1, 2, 3), ok(3, 4, "b", 4).by("q", 1)}}, []Kind{StaleFence}},
		{"two children with the fence of their parent", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 2, "a", 1, 2, 3).by("p/1", 1), ok(3, 4, "b", 4).by("p/2", 1)}}, nil},
		{"an older fence that began earlier", Config{}, run{pushed: slices.Concat(a, b), calls: []*did{
			ok(1, 5, "b", 4), ok(2, 3, "a", 1, 2, 3).by("q", 2)}}, nil},

		{"lost", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2)}}, []Kind{Lost}},
		{"lost: only failures", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3).fails()}}, []Kind{Lost, Lost, Lost}},
		{"lost: killed in the last call", Config{}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(3, 0, "a", 3)}, deaths: []died{{"p", 5, 7}}}, []Kind{Lost}},
		{"lost: pushed again after it was handled", Config{}, run{pushed: late, calls: []*did{ok(1, 2, "a", 1, 2, 3)}}, []Kind{Lost}},
		{"optional", Config{}, run{pushed: []Pushed{a[0], a[1], {Queue: queue, ID: "c", Optional: true}}, calls: []*did{ok(1, 2, "a", 1, 2)}}, nil},
		{"equal payloads merge into the smaller score", Config{}, run{pushed: equal, calls: []*did{
			{process: "p", id: "a", start: 1, end: 2, payloads: equalLoad}}}, nil},

		{"unknown score", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3, 5)}}, []Kind{Unknown}},
		{"unknown id", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3), ok(3, 4, "b", 4)}}, []Kind{Unknown}},
		{"unknown, though the handler failed", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3), ok(3, 4, "b", 4).fails()}}, []Kind{Unknown}},

		{"unsorted", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 2, 1, 3)}}, []Kind{Unsorted}},
		{"overtaken", Config{}, run{pushed: a, calls: []*did{ok(1, 2, "a", 2), ok(3, 4, "a", 1), ok(5, 6, "a", 3)}}, []Kind{Overtaken}},
		{"a failed payload is overtaken", Config{}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1).fails(), ok(3, 4, "a", 2).fails(), ok(5, 6, "a", 1, 2, 3)}}, []Kind{Overtaken}},
		{"a lower score that was pushed later", Config{}, run{pushed: pushes("a", 2, 1), calls: []*did{ok(1, 2, "a", 2), ok(3, 4, "a", 1)}}, nil},

		{"equal scores in push order", Config{}, run{pushed: even(x, y), calls: []*did{gets(1, 2, x, y)}}, nil},
		{"equal scores in push order, other way", Config{}, run{pushed: even(y, x), calls: []*did{gets(1, 2, y, x)}}, nil},
		{"equal scores unsorted", Config{}, run{pushed: even(x, y), calls: []*did{gets(1, 2, y, x)}}, []Kind{Unsorted}},
		{"equal scores unsorted, other way", Config{}, run{pushed: even(y, x), calls: []*did{gets(1, 2, x, y)}}, []Kind{Unsorted}},
		{"equal score overtaken", Config{}, run{pushed: even(x, y), calls: []*did{gets(1, 2, y), gets(3, 4, x)}}, []Kind{Overtaken}},
		{"equal score overtaken, other way", Config{}, run{pushed: even(y, x), calls: []*did{gets(1, 2, x), gets(3, 4, y)}}, []Kind{Overtaken}},
		{"equal scores, one pushed again", Config{}, run{pushed: even(x, y, x), calls: []*did{gets(1, 2, x), gets(3, 4, y, x)}}, nil},
		{"equal scores, one back from the morgue", Config{}, run{pushed: buried, calls: []*did{gets(1, 2, y, x)}}, nil},
		{"a payload twice in a call", free, run{pushed: even(x, x), calls: []*did{gets(1, 2, x, x)}}, []Kind{Repeated}},
		{"equal payloads of two scores in a call", free, run{pushed: equal, calls: []*did{
			gets(1, 2, equalLoad[0], lowkiq.Payload{Score: 2, Data: equalLoad[0].Data}, equalLoad[1])}}, []Kind{Repeated}},

		{"repeat of the last call", Config{MaxDuplicates: 2, MaxUncaused: 2}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(3, 4, "a", 1, 2, 3)}}, nil},
		{"repeat of an earlier call", free, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1), ok(3, 4, "a", 2, 3), ok(5, 6, "a", 1)}}, []Kind{WentBack}},
		{"repeat without the highest", free, run{pushed: a, calls: []*did{ok(1, 2, "a", 1, 2, 3), ok(3, 4, "a", 1)}}, []Kind{WentBack}},
		{"pushed again", Config{}, run{pushed: append(slices.Clone(a), a[0]), calls: []*did{ok(1, 2, "a", 1, 2, 3), ok(3, 4, "a", 1)}}, nil},
		{"pushed again after a repeat", Config{MaxDuplicates: 2}, run{pushed: slices.Concat(a[:2], a[:1]), calls: []*did{
			ok(1, 2, "a", 1, 2), ok(5, 6, "a", 1, 2).by("q", 2), ok(7, 8, "a", 1).by("q", 2)}, deaths: []died{{"p", 3, 4}}}, nil},
		{"too many repeats", Config{MaxDuplicates: 1, MaxUncaused: -1}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(3, 4, "a", 1, 2, 3)}}, []Kind{Repeated}},
		{"repeat without a death", Config{MaxDuplicates: -1}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(3, 4, "a", 1, 2, 3)}}, []Kind{Repeated}},
		{"repeat after a death", Config{MaxDuplicates: -1}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(5, 6, "a", 1, 2, 3).by("q", 2)}, deaths: []died{{"p", 3, 4}}}, nil},
		{"repeat before the death", Config{MaxDuplicates: -1}, run{pushed: a, calls: []*did{
			ok(1, 2, "a", 1, 2), ok(5, 6, "a", 1, 2, 3).by("q", 2)}, deaths: []died{{"p", 8, 9}}}, []Kind{Repeated}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run.judged(t, test.cfg, test.want)
		})
	}
}

func TestCheckUnreadableLines(t *testing.T) {
	good := run{pushed: pushes("a", 1), calls: []*did{ok(1, 2, "a", 1)}}
	dead := good
	dead.deaths = []died{{"q", 3, 4}}
	parent := dead // with children of p that wrote something, and died with it
	parent.calls = []*did{ok(1, 2, "a", 1).by("p/1", 1), ok(2, 3, "a", 1).by("p/2", 1).fails()}
	parent.deaths = []died{{"p", 3, 4}}
	start := `start 5 "q" "history" 0 2 9 "a" 1 1:` // cut short by a kill
	tests := []struct {
		name string
		run  run
		more string
		want int
	}{
		{"torn at a death", dead, "\n" + start, 0},
		{"torn twice at one death", dead, "\n" + start + "\n" + start, 1},
		{"torn by each child of a dead parent", parent, "\n" + start + "\n" + start, 0},
		{"torn without a death", good, "\n" + start, 1},
		{"nonsense", dead, "\nhello 1 \"p\" .", 1},
		{"bad number", dead, "\nend x \"p\" 1 \"history\" \"a\" .", 1},
		{"end without a start", dead, "\nend 9 \"p\" 7 \"history\" \"a\" .", 1},
		{"surplus", dead, "\nend 2 \"p\" 1 \"history\" \"a\" 5 .", 1},
		{"too few fields", dead, "\nstart 2 \"p\" .", 1},
		{"blank lines", good, "\n\n\n", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := string(test.run.text(t)) + test.more
			v, err := CheckReader(Config{}, slices.Values(test.run.pushed), strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if got := v.Counts[Unreadable]; got != test.want || v.OK() != (test.want == 0) {
				t.Errorf("got %d unreadable lines, OK %v, want %d\n%s", got, v.OK(), test.want, v.Words())
			}
		})
	}
}

// A process killed while it notes a start of many lines never entered the handler.
func TestCheckHalfAStartIsNoCall(t *testing.T) {
	var scores []float64
	for s := range 3 * linePayloads {
		scores = append(scores, float64(s))
	}
	r := run{pushed: pushes("a", scores...), calls: []*did{ok(1, 0, "a", scores...)}}
	first := strings.Split(string(r.text(t)), "\n")[1]
	r.calls = []*did{ok(10, 11, "a", scores...).by("q", 2)}
	r.deaths = []died{{"p", 5, 6}}
	v, err := CheckReader(Config{}, slices.Values(r.pushed), strings.NewReader("\n"+first+string(r.text(t))))
	if err != nil {
		t.Fatal(err)
	}
	if !v.OK() || v.Calls != 1 || v.Distinct != len(scores) {
		t.Errorf("got %d calls, %d distinct, want 1 and %d\n%s", v.Calls, v.Distinct, len(scores), v.Words())
	}
}

func TestVerdictFiguresAndWords(t *testing.T) {
	r := run{pushed: pushes("a", 1, 2), calls: []*did{
		ok(1e9, 2e9, "a", 1), ok(2e9, 3e9, "a", 2).fails(), ok(3e9, 4e9, "a", 1, 2).by("q", 2)}, deaths: []died{{"p", 3e9, 3e9}}}
	v := r.check(t, Config{MaxDuplicates: -1})
	if v.Handled != 3 || v.Distinct != 2 || v.Duplicates != 1 || v.Uncaused != 0 || v.Wall.Seconds() != 3 || v.PerSecond != 2.0/3 {
		t.Errorf("got %+v, want 3 handled, 2 distinct, 1 duplicate with a cause, 3 s", v)
	}
	for _, want := range []string{"verdict: good", "yes, 2 of 2 pushed, 0 lost", "1 payloads, 0 of them", "3, 1 failed, 0 cut off by 1 deaths"} {
		if !strings.Contains(v.Words(), want) {
			t.Errorf("got words\n%s\nwant %q in them", v.Words(), want)
		}
	}
	r.calls = r.calls[:1]
	for range 2 * MaxFaults {
		r.pushed = append(r.pushed, pushes("b", 7)...)
	}
	v = r.check(t, Config{})
	for _, want := range []string{"verdict: BAD", "NO, 1 of 42 pushed, 41 lost", "faults, lost: 41", "… and 21 more faults"} {
		if !strings.Contains(v.Words(), want) {
			t.Errorf("got words\n%s\nwant %q in them", v.Words(), want)
		}
	}
}

func TestNothingCheckedIsNotGood(t *testing.T) {
	var v Verdict
	if v.OK() || !strings.Contains(v.Words(), "nothing was checked") {
		t.Errorf("the zero Verdict: got OK %v and %q, want a bad one", v.OK(), v.Words())
	}
	if _, err := CheckReader(Config{}, slices.Values([]Pushed(nil)), strings.NewReader("")); err == nil {
		t.Error("nothing pushed: got no error, want one")
	}
	if _, err := Check(Config{}, slices.Values(pushes("a", 1)), t.TempDir()+"/none"); err == nil {
		t.Error("no file: got no error, want one")
	}
	for _, cfg := range []Config{
		{ShardConcurrency: -1}, {MaxDuplicates: -2}, {MaxUncaused: -2}, {Limits: []Limit{{Concurrency: 1}}}, {Limits: []Limit{{Queue: queue, Concurrency: -1}}},
		{Limits: []Limit{{Queue: queue, Rate: 1}}}, {Limits: []Limit{{Queue: queue, From: 2, To: 1}}},
	} {
		if _, err := CheckReader(cfg, slices.Values(pushes("a", 1)), strings.NewReader("")); err == nil {
			t.Errorf("%+v: got no error, want one", cfg)
		}
	}
}

func TestPushedOf(t *testing.T) {
	score := 3.0
	got := PushedOf(queue, lowkiq.Push{ID: "a", Score: &score, Payload: []byte("x")}, 7)
	if want := (Pushed{Queue: queue, ID: "a", Score: 3, Digest: Digest([]byte("x")), At: 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
