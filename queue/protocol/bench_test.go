package protocol_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// benchQueue returns an owned queue on a server of its own, and n new jobs for it.
func benchQueue(b *testing.B, shards, n int, options ...func(*lowkiq.Push)) (*Queue, []*Claim, []lowkiq.Push) {
	b.Helper()
	c := (&backend{url: redistest.Start(b).URL()}).open(b)
	q := newQueue(b, c, shards)
	claims := make([]*Claim, shards)
	for i := range shards {
		var err error
		if claims[i], err = q.Shard(i).Claim(b.Context(), "n/1", Fresh, Owner{}); err != nil {
			b.Fatal(err)
		}
	}
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = job(fmt.Sprintf("id%d", i), "sixteen bytes...", options...)
	}
	return q, claims, jobs
}

func perSecond(b *testing.B, what string) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), what+"/s")
}

// BenchmarkPushBulk measures a push of 10,000 jobs in one call. An op is a job.
func BenchmarkPushBulk(b *testing.B) {
	for name, options := range map[string][]func(*lowkiq.Push){
		"plain": nil, "scored": {score(1)}, "timed": {in(-time.Hour)},
	} {
		b.Run(name, func(b *testing.B) {
			q, _, jobs := benchQueue(b, 5, b.N, options...)
			b.ReportAllocs()
			b.ResetTimer()
			for len(jobs) > 0 {
				n := min(10_000, len(jobs))
				if _, err := q.Push(b.Context(), jobs[:n]...); err != nil {
					b.Fatal(err)
				}
				jobs = jobs[n:]
			}
			perSecond(b, "jobs")
		})
	}
}

// BenchmarkPushSingle50 measures pushes of single jobs by 50 goroutines. An op is a job.
func BenchmarkPushSingle50(b *testing.B) {
	q, _, jobs := benchQueue(b, 5, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	var work sync.WaitGroup
	for w := range 50 {
		work.Go(func() {
			for i := w; i < len(jobs); i += 50 {
				if _, err := q.Push(context.Background(), jobs[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	perSecond(b, "jobs")
}

// BenchmarkPopAck measures jobs that are popped in flights of 100 and acked with the next pop. An op is a job.
func BenchmarkPopAck(b *testing.B) {
	for _, rest := range []bool{true, false} {
		b.Run(fmt.Sprintf("rest=%v", rest), func(b *testing.B) {
			q, claims, jobs := benchQueue(b, 1, b.N)
			if _, err := q.Push(b.Context(), jobs...); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			req := PopRequest{IDs: 100, Bytes: 1 << 20}
			for done := 0; done < b.N; {
				p, err := claims[0].Pop(b.Context(), req)
				if err != nil {
					b.Fatal(err)
				}
				ack := Acks{Flight: p.Flight, Rest: rest}
				for i := 0; i < len(p.Jobs) && !rest; i++ {
					ack.IDs = append(ack.IDs, p.Jobs[i].ID)
				}
				req.Acks = []Acks{ack}
				done += len(p.Jobs)
			}
			perSecond(b, "jobs")
		})
	}
}

// BenchmarkPushOverTombs measures a push of 1,000 ids for later. The ids were deleted while they were ready, behind
// 200,000 ready ids. An op is a push.
func BenchmarkPushOverTombs(b *testing.B) {
	q, _, ahead := benchQueue(b, 1, 200_000)
	if _, err := q.Push(b.Context(), ahead...); err != nil {
		b.Fatal(err)
	}
	for n := range b.N {
		b.StopTimer()
		old, again := make([]lowkiq.Push, 1000), make([]lowkiq.Push, 1000)
		ids := make([]string, len(old))
		for i := range ids {
			ids[i] = fmt.Sprint("tomb", n, ".", i)
			old[i], again[i] = job(ids[i], "old"), job(ids[i], "new", in(time.Hour))
		}
		if _, err := q.Push(b.Context(), old...); err != nil {
			b.Fatal(err)
		}
		if _, err := browse.Of(q).Delete(b.Context(), browse.Anywhere, ids...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := q.Push(b.Context(), again...); err != nil {
			b.Fatal(err)
		}
	}
}
