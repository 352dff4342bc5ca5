package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// longRun returns a run with as much text as its line keeps.
func longRun(id string, verdict journal.Verdict) *journal.Run {
	return &journal.Run{ID: id, Verdict: verdict, RetryCount: -1, Result: make([]byte, journal.MaxResult),
		Ran: journal.Ran{Due: time.Now(), Popped: time.Now(), Began: time.Now(), Took: time.Second, Log: strings.Repeat("l", journal.MaxLog)}}
}

// journals ends runs with as many and as long lines as allowed, and reads the resulting journals.
func (w *worstOf) journals(t *testing.T, b *backend) {
	for _, size := range []struct {
		ids, length int
		run         func(id string, verdict journal.Verdict) *journal.Run
	}{
		{2000, 500, longRun},
		{2000, 1, func(id string, verdict journal.Verdict) *journal.Run {
			return &journal.Run{ID: id, Verdict: verdict, RetryCount: -1}
		}},
	} {
		for _, noted := range []bool{false, true} {
			w.journal(t, b, size.ids, size.length, noted, size.run)
		}
	}
}

func (w *worstOf) journal(t *testing.T, b *backend, n, length int, noted bool, run func(id string, verdict journal.Verdict) *journal.Run) {
	r := newRig(t, b, func(cfg *Config) { cfg.Cluster = fmt.Sprintf("journal-%d-%t", length, noted) })
	rdb := r.c.DB().ForTests()
	rdb.AddHook(w)
	keep := 1_000_000
	// popped returns ids in flight, with notes about each.
	popped := func() (acks []Acks) {
		var jobs []lowkiq.Push
		for i := range n {
			jobs = append(jobs, job(fmt.Sprintf("%0*d", length, i), "1"))
		}
		r.push(jobs...)
		r.claim.SetJournal(journal.Rule{Runs: journal.All, Keep: keep, For: time.Hour})
		for left := n; left > 0; {
			p := r.pop(1000)
			a := Acks{Flight: p.Flight, InRow: true}
			for _, j := range p.Jobs {
				a.IDs = append(a.IDs, j.ID)
				a.Runs.Add(run(j.ID, journal.Done))
				if noted {
					text := fmt.Sprintf("%d 0.5\n%s", time.Now().Add(time.Second).UnixMicro(), strings.Repeat("n", journal.MaxLog))
					r.noErr(rdb.HSet(r.ctx, r.s.Keys().Progress, j.ID, text).Err())
					a.Answers = append(a.Answers, Answer{ID: j.ID, HasNotes: true})
				}
			}
			acks, left = append(acks, a), left-len(p.Jobs)
		}
		return acks
	}
	at := func(what string) {
		w.what = fmt.Sprintf("%d ids of %d bytes, noted %t: %s", n, length, noted, what)
	}
	for _, keep = range []int{1_000_000, 1} { // with the second one, what is there is trimmed
		at(fmt.Sprint("acks in row, keep ", keep))
		_, err := r.claim.Ack(r.ctx, popped()...)
		r.noErr(err)
		at(fmt.Sprint("acks from the last to the first, keep ", keep))
		acks := popped()
		slices.Reverse(acks)
		for i := range acks {
			acks[i].InRow, acks[i].IDs, acks[i].Runs, acks[i].Answers = false, reversed(acks[i].IDs), journal.Block{}, nil
			for _, id := range acks[i].IDs {
				acks[i].Runs.Add(run(id, journal.Done))
			}
		}
		_, err = r.claim.Ack(r.ctx, acks...)
		r.noErr(err)
		at(fmt.Sprint("late acks, keep ", keep)) // all that they say is taken apart, for nothing
		_, err = r.claim.Ack(r.ctx, acks...)
		r.noErr(err)
		at(fmt.Sprint("failures, keep ", keep))
		for _, policy := range []Policy{"", Bury} {
			acks = popped()
			var nacks []Nack
			var burials []Burial
			for _, a := range acks {
				for _, id := range a.IDs {
					ran := run(id, journal.Failed).Ran
					nacks = append(nacks, Nack{Flight: a.Flight, ID: id, Kind: Retry, Error: strings.Repeat("e", 5000), Ran: ran})
					burials = append(burials, Burial{Flight: a.Flight, ID: id, Policy: policy, Error: strings.Repeat("e", 5000), Ran: ran})
				}
			}
			if policy == "" {
				_, err = r.claim.Nack(r.ctx, nacks...)
			} else {
				_, err = r.claim.Bury(r.ctx, burials...)
			}
			r.noErr(err)
		}
		if keep > 1 {
			at("reading")
			w.reads(r)
		}
	}
	at("notes")
	acks := popped()
	last := acks[len(acks)-1]
	id := last.IDs[len(last.IDs)-1]
	for range 3 {
		r.noErr(r.claim.Note(r.ctx, Note{Flight: last.Flight, ID: id, Note: lowkiq.Note{Progress: 0.5, Log: strings.Repeat("l", journal.MaxLog), State: make([]byte, lowkiq.MaxStateBytes)}}))
	}
	at("a seizure")
	r.own(Seize)
	at("a delivery")
	r.crowds(9000, 3, "crowd")
	_, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, job("crowd", strings.Repeat("x", 1<<20)))
	r.noErr(err)
	r.noErr(rdb.FlushDB(r.ctx).Err())
}

// reads searches a journal for runs that are rare.
func (w *worstOf) reads(r *rig) {
	r.t.Helper()
	for _, q := range []browse.RunQuery{{Limit: 1000}, {ID: "nobody"}, {Verdicts: []browse.Verdict{browse.RunPostponed}}, {Contains: "nothing has this"}, {Node: "nobody"}} {
		_, err := browse.Of(r.q).Runs(r.ctx, q)
		r.noErr(err)
		_, err = browse.Of(r.q).RunsAfter(r.ctx, 0, q)
		r.noErr(err)
	}
}

// clusterKeys runs scripts on keys of the cluster that are as full as allowed.
func (w *worstOf) clusterKeys(t *testing.T, b *backend) {
	r := newRig(t, b, func(cfg *Config) { cfg.Cluster = "keys" })
	rdb := r.c.DB().ForTests()
	rdb.AddHook(w)
	ctx := r.ctx
	w.what = "1,000 ids are tracked"
	ids := make([]string, rules.MaxTracked)
	for i := range ids {
		ids[i] = fmt.Sprintf("%060d", i) // 64 KiB of them is the limit
	}
	tracked, err := json.Marshal(ids)
	r.noErr(err)
	for n := range 3 {
		_, err := rules.In(r.c.DB()).Change(ctx, "q", rules.Change{Set: map[string]json.RawMessage{"tracked": tracked, "batch_size": json.RawMessage(fmt.Sprint(n + 1))}, If: -1})
		r.noErr(err)
	}
	w.what = "1,000 entries recur"
	book := recurring.Of(r.c)
	spec := recurring.Spec{Every: recurring.Duration(time.Second), Queue: "q", Payload: json.RawMessage(`"` + strings.Repeat("x", 3900) + `"`)}
	r.noErr(book.Add(ctx, "n", spec))
	keys := r.c.DB().Keys
	text, err := rdb.HGet(ctx, keys.Recurring(), "n").Result()
	r.noErr(err)
	due := time.Now().Add(-2 * time.Minute).Truncate(time.Second)
	pipe := rdb.Pipeline()
	for i := range recurring.MaxEntries - 1 {
		pipe.HSet(ctx, keys.Recurring(), fmt.Sprint("n", i), text)
		pipe.ZAdd(ctx, keys.Ticks(), redis.Z{Score: float64(due.UnixMicro()), Member: fmt.Sprint("n", i)})
		pipe.HSet(ctx, keys.Ticked(), fmt.Sprint("n", i), `{"tick":1700000000000000,"at":1700000000000000,"missed":1000}`)
	}
	_, err = pipe.Exec(ctx)
	r.noErr(err)
	_, err = book.List(ctx)
	r.noErr(err)
	if err := book.Add(ctx, "more", recurring.Spec{Every: recurring.Duration(time.Second), Queue: "q"}); !errors.Is(err, recurring.ErrTooMany) {
		t.Errorf("one more: got %v, want %v", err, recurring.ErrTooMany)
	}
	r.noErr(book.Edit(ctx, "n1", func(s *recurring.Spec) error { s.Every = recurring.Duration(time.Minute); return nil }))
	r.noErr(book.Remove(ctx, "n2"))
	w.what = "1,000 entries recur, all of them due"
	f := &recurring.Firer{Leads: func() bool { return true }, Files: func(context.Context) ([]recurring.Process, bool) { return nil, true }, Patience: time.Hour,
		Since: r.c.Time, Late: func(time.Duration) {}, Missed: func(string, int64) {}, Warn: func(string, error) {}, Log: slog.New(slog.DiscardHandler)}
	firing, stop := context.WithCancel(ctx)
	fired := make(chan struct{})
	go func() { defer close(fired); f.Run(firing, book) }()
	until(t, "ticks are pushed", func() bool {
		stats, err := r.q.Stats(ctx)
		return err == nil && stats.Jobs.Total() > 900
	})
	stop()
	<-fired
	r.noErr(rdb.FlushDB(ctx).Err())
}
