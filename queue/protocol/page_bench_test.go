package protocol_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

// million returns a queue of 16 shards with 1,000,000 jobs, of them 400,000 ready, 300,000 scheduled and
// 300,000 failed, and with 100,000 in the morgue.
func million(b *testing.B) *Queue {
	b.Helper()
	q, claims, _ := benchQueue(b, 16, 0)
	push := func(name string, n int, options ...func(*lowkiq.Push)) {
		for from := 0; from < n; from += 10_000 {
			jobs := make([]lowkiq.Push, 10_000)
			for i := range jobs {
				jobs[i] = job(fmt.Sprint(name, from+i), "sixteen bytes...", options...)
			}
			if _, err := q.Push(b.Context(), jobs...); err != nil {
				b.Fatal(err)
			}
		}
	}
	push("failed", 300_000)
	for _, claim := range claims {
		failAll(b, claim)
	}
	push("dead", 100_000)
	for dead := (browse.Query{State: browse.StateReady}); ; {
		step, err := browse.Of(q).Bulk(b.Context(), browse.Kill, dead)
		if err != nil {
			b.Fatal(err)
		}
		if dead.Cursor = step.Next; step.Next == "" {
			break
		}
	}
	push("later", 300_000, in(time.Hour))
	push("ready", 400_000)
	return q
}

// failAll fails all due jobs of a shard.
func failAll(b *testing.B, claim *Claim) {
	for {
		p, err := claim.Pop(b.Context(), PopRequest{IDs: 1000, Bytes: 1 << 24})
		if err != nil {
			b.Fatal(err)
		}
		if len(p.Jobs) == 0 {
			return
		}
		nacks := make([]Nack, len(p.Jobs))
		for i, j := range p.Jobs {
			nacks[i] = Nack{Flight: p.Flight, ID: j.ID, Kind: Retry, RetryCount: i % 20, Delay: time.Duration(i+1) * time.Minute, Error: fmt.Sprint("no account ", i)}
		}
		if _, err := claim.Nack(b.Context(), nacks...); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPage reads a page of 100 of a queue of 1,000,000 jobs, either the first page or the page after nine others.
// An op is a page.
func BenchmarkPage(b *testing.B) {
	q := million(b)
	for _, query := range []browse.Query{
		{}, {Range: browse.Range{Reverse: true}}, {State: browse.StateReady}, {State: browse.StateScheduled}, {State: browse.StateRetry}, {State: browse.StateMorgue},
		{By: browse.ByID}, {State: browse.StateReady, By: browse.ByID}, {State: browse.StateScheduled, By: browse.ByID}, {State: browse.StateRetry, By: browse.ByID}, {State: browse.StateMorgue, By: browse.ByID},
		{By: browse.ByRetries}, {State: browse.StateRetry, Kind: "no account #"}, {State: browse.StateRetry, Kind: "none"}, {By: browse.ByID, Range: browse.Range{MinID: "x"}}, {State: browse.StateReady, Range: browse.Range{MinID: "x"}},
	} {
		name := fmt.Sprintf("state=%s/by=%s/reverse=%v/kind=%s/min=%s", query.State, query.By, query.Reverse, query.Kind, query.MinID)
		b.Run(name+"/first", func(b *testing.B) { onePage(b, q, query) })
		for range 9 {
			page, err := browse.Of(q).Page(b.Context(), query)
			if err != nil {
				b.Fatal(err)
			}
			if query.Cursor = page.Next; page.Next == "" {
				break
			}
		}
		b.Run(name+"/tenth", func(b *testing.B) { onePage(b, q, query) })
	}
	for _, state := range []browse.State{browse.StateRetry, browse.StateMorgue} {
		b.Run(fmt.Sprintf("errors/state=%s", state), func(b *testing.B) {
			for b.Loop() {
				if _, err := browse.Of(q).Errors(b.Context(), state); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func onePage(b *testing.B, q *Queue, query browse.Query) {
	b.Helper()
	for b.Loop() {
		if _, err := browse.Of(q).Page(b.Context(), query); err != nil {
			b.Fatal(err)
		}
	}
}
