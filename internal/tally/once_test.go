package tally

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// world is processes that count, and others that join, on a Redis whose clock only goes when it is told to.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	db     *redisdb.DB
	clock  *redistest.Clock
	began  time.Time
	off    time.Duration
	all    []*process
	plans  []plan         // done again, or too late
	sent   []Write[count] // done again, in any order
	forgot int            // answers that do not say where a part was joined
	joins  int
	faults bool
}

type plan struct {
	key string
	Joining[count]
}

type process struct {
	*Tally[count]
	counted, safe count // in all; of that Redis has acknowledged
}

var errLost = errors.New("lost")

func (w *world) process() *process {
	p := &process{}
	var now time.Time
	asked := time.Now()
	into := Into[count](w.db)
	p.Tally = &Tally[count]{
		Boot: fmt.Sprint("p", len(w.all)), Read: func() map[string]count { return map[string]count{"orders": p.counted} },
		Guess: func() time.Time { return now.Add(time.Since(asked)) },
		Ask: func(ctx context.Context) (time.Time, error) {
			if w.faults && w.rng.IntN(10) == 0 {
				return time.Time{}, errLost
			}
			at, err := w.db.Time(ctx)
			now, asked = at, time.Now()
			return at, err
		},
		Failed: func(error) {},
		Write: func(ctx context.Context, all []Write[count]) []Answer {
			answers := make([]Answer, len(all))
			for i, one := range all {
				fate := 9
				if w.faults {
					fate = w.rng.IntN(10)
				}
				if fate == 0 {
					answers[i].Err = errLost
					continue
				}
				answers[i] = into(ctx, all[i:i+1])[0]
				if answers[i].Err != nil {
					w.t.Fatal(answers[i].Err)
				}
				w.sent = append(w.sent, one)
				if answers[i].Joined && answers[i].Last == 0 {
					w.forgot++
				}
				if fate < 3 {
					answers[i] = Answer{Err: errLost}
				}
			}
			return answers
		},
	}
	w.all = append(w.all, p)
	return p
}

// step has a process write, and says how much may be missing, as it was not told where its part was joined.
func (w *world) step(p *process) (slack count) {
	before := w.forgot
	p.Step(w.t.Context())
	if w.forgot > before {
		slack = p.counted - p.safe
	}
	if len(p.due()) == 0 && p.asked {
		p.safe = p.counted
	}
	return slack
}

// keys are those of days or hours that may be there.
func (w *world) keys(span string) (keys []string) {
	n := int(w.off/time.Hour) + 4
	if span == redisdb.Days {
		n = n/24 + 3
	}
	for _, period := range redisdb.Periods(span, w.began.Add(w.off+time.Hour), n) {
		keys = append(keys, w.db.Keys.Day("orders", period))
	}
	return keys
}

func (w *world) fields(key string) []Field {
	reply, err := w.db.Do(w.t.Context(), "read a day", "HGETALL", key)
	if err != nil {
		w.t.Fatal(err)
	}
	return FieldsOf(redisdb.Map(reply))
}

// join joins days and hours as they are now, or plans it.
func (w *world) join() {
	now, err := w.db.Time(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range append(w.keys(redisdb.Days), w.keys(redisdb.Hours)[:4]...) {
		j, _ := Plan(w.fields(key), now, parseCount, addCounts)
		if len(j.Parts)+len(j.Marks) == 0 {
			continue
		}
		w.plans = append(w.plans, plan{key, j})
		for range w.rng.IntN(3) { // not at all: it is done later, or never
			w.do(w.plans[len(w.plans)-1])
		}
	}
}

func (w *world) do(p plan) {
	done, err := p.Do(w.t.Context(), w.db, p.key, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if done {
		w.joins++
	}
}

// sum is what Redis has of all days, or of all hours.
func (w *world) sum(span string) (sum count) {
	for _, key := range w.keys(span) {
		for _, f := range w.fields(key) {
			if n, ok := parseCount(f.Figures); ok {
				sum += n
			} else if !f.Mark() {
				w.t.Errorf("key %s, field %s: got %q", key, f.Name, f.Text)
			}
		}
	}
	return sum
}

// TestCountedOnce: whatever is lost, repeated, late or done by several at once, and whoever dies, nothing is counted twice,
// nothing that a living process has counted is missing, and of a dead one no more than what Redis has never heard of. Where the
// clock goes so fast that marks are forgotten, what was on its way may be missing, too.
func TestCountedOnce(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	joins, forgot := 0, 0
	for seed := range uint64(90) {
		db, err := redisdb.Open(redisdb.Config{URL: server.URL(), Cluster: fmt.Sprint("c", seed), Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		clock.Set(0)
		began, err := db.Time(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, rng: rand.New(rand.NewPCG(1, seed)), db: db, clock: clock, began: began, faults: true}
		lost, slack := w.run(seed%2 == 1)
		for _, span := range []string{redisdb.Days, redisdb.Hours} {
			var counted count
			for _, p := range w.all {
				counted += p.counted
			}
			if got := w.sum(span); got > counted || got < counted-lost-slack {
				t.Errorf("seed %d, %s: got %d, want %d, of which %d were lost by the dead and %d on their way", seed, span, got, counted, lost, slack)
			}
		}
		joins, forgot = joins+w.joins, forgot+w.forgot
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if joins < 100 || forgot < 10 {
		t.Errorf("got %d joins, %d processes that were not told where they were joined: too few to show anything", joins, forgot)
	}
}

// run lets things happen, and then all that live write what they have. It says what the dead may have lost, and what may be
// missing as it was on its way for longer than a mark is kept.
func (w *world) run(fast bool) (lost, slack count) {
	alive := []*process{w.process(), w.process()}
	for range 200 {
		k := w.rng.IntN(len(alive))
		p := alive[k]
		switch w.rng.IntN(9) {
		case 0, 1:
			p.counted += count(w.rng.IntN(5))
		case 2, 3:
			slack += w.step(p)
		case 4:
			step := time.Duration(w.rng.IntN(100)) * time.Second
			if fast {
				step *= 60
			}
			w.off = min(w.off+step, 40*time.Hour) // hours are kept for 48
			w.clock.Set(w.off)
		case 5, 6:
			w.join()
		case 7:
			if len(w.sent) > 0 {
				one := w.sent[w.rng.IntN(len(w.sent))]
				if answer := Into[count](w.db)(w.t.Context(), []Write[count]{one})[0]; answer.Err != nil {
					w.t.Fatal(answer.Err)
				}
			}
			if len(w.plans) > 0 {
				w.do(w.plans[w.rng.IntN(len(w.plans))])
			}
		case 8:
			if w.rng.IntN(3) > 0 {
				continue
			}
			if w.rng.IntN(2) == 0 { // it ends, and is not killed
				p.ends = true
				slack += w.step(p)
			}
			lost += p.counted - p.safe
			alive[k] = w.process()
		}
	}
	w.faults = false
	for _, p := range alive {
		for range 3 {
			slack += w.step(p)
		}
		if due := p.due(); len(due) > 0 {
			w.t.Errorf("%s still owes %d writes", p.Boot, len(due))
		}
	}
	return lost, slack
}

// TestJoinNeedsTheSum: who has read what was joined before somebody else joined other parts changes nothing.
func TestJoinNeedsTheSum(t *testing.T) {
	t.Parallel()
	db, err := redisdb.Open(redisdb.Config{URL: redistest.Start(t).URL(), Cluster: "default", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	key := db.Keys.Day("orders", "2026-01-31")
	if _, err := db.Do(t.Context(), "plant", "HSET", key, "joined", "5", "a", "1 1 2", "b", "1 1 3"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		part string
		sum  count
		want bool
	}{{"a", 7, true}, {"a", 7, false}, {"b", 8, false}} {
		j := Joining[count]{Old: "5", Sum: c.sum, Parts: []Field{{Name: c.part, Text: "1 1 " + strconv.Itoa(int(c.sum-5))}}}
		if done, err := j.Do(t.Context(), db, key, nil); done != c.want || err != nil {
			t.Errorf("join %s: got %v, %v, want %v", c.part, done, err, c.want)
		}
	}
	reply, err := db.Do(t.Context(), "read", "HMGET", key, "joined", "b")
	if got := redisdb.Texts(reply); err != nil || !slices.Equal(got, []string{"7", "1 1 3"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestIdleProcessesLoseNothing: a process that counts something once in a few hours, so that its part was joined and the mark of
// that is gone, finds all of it in its day.
func TestIdleProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	db, err := redisdb.Open(redisdb.Config{URL: server.URL(), Cluster: "default", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	began, err := db.Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rng: rand.New(rand.NewPCG(1, 1)), db: db, clock: clock, began: began}
	rare, other := w.process(), w.process()
	for hour := range 30 {
		w.off = time.Duration(hour) * 70 * time.Minute
		for _, minutes := range []time.Duration{0, 3, 66} { // they write, are joined, and the marks of that are dropped
			clock.Set(w.off + minutes*time.Minute)
			if minutes == 0 {
				rare.counted, other.counted = rare.counted+1, other.counted+1
				rare.Step(t.Context())
				other.Step(t.Context())
			}
			for _, key := range w.keys(redisdb.Days) {
				now, err := db.Time(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				j, _ := Plan(w.fields(key), now, parseCount, addCounts)
				w.do(plan{key, j})
			}
		}
	}
	if got := w.sum(redisdb.Days); got != 60 || w.joins < 29 {
		t.Errorf("two processes have counted 30 each; the days have %d, after %d joins", got, w.joins)
	}
}
