package queue

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

func smoke(t *testing.T, url string) {
	ctx := context.Background()
	c, err := Open(Config{Redis: url})
	if err != nil { t.Fatal(err) }
	defer c.Close()
	if _, err := c.Check(ctx, false); err != nil { t.Fatal(err) }
	q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
	if err != nil { t.Fatal(err) }
	f := 3.5
	for i := range 300 {
		_, err := q.Push(ctx, lowkiq.Push{ID: fmt.Sprint("id", i%7), Payload: []byte(fmt.Sprint("p", i))}, lowkiq.Push{ID: "x", Payload: []byte("s"), Score: &f}, lowkiq.Push{ID: fmt.Sprint("late", i), PerformAt: time.Now().Add(time.Hour)})
		if err != nil { t.Fatal(err) }
	}
	st, err := q.Stats(ctx)
	fmt.Printf("%+v %v\n", st, err)
	for i := range 2 {
		s := q.Shard(i)
		o, err := s.Owner(ctx)
		if err != nil { t.Fatal(err) }
		cl, err := s.Claim(ctx, "n/1.1", Fresh, o)
		if err != nil { t.Fatal(err) }
		p, err := cl.Pop(ctx, PopRequest{IDs: 100, Bytes: 1 << 20, MaxCrashes: 3})
		fmt.Println(p.Flight, len(p.Jobs), p.Open, p.Next, p.Ready, err)
		for _, j := range p.Jobs { fmt.Println(j.ID, len(j.Payloads), j.Payloads[0].Score, string(j.Payloads[0].Data), j.PerformAt) 
		cl.Ack(ctx, Acks{p.Flight, []string{j.ID}}) }
		cl2 := s.Adopt("other", 3)
		_, err = cl2.Pop(ctx, PopRequest{IDs: 1})
		fmt.Println(err)
		n, err := cl.Release(ctx)
		fmt.Println(n, err)
	}
	st, err = q.Stats(ctx)
	fmt.Printf("%+v %v\n", st, err)
}

func TestSmoke(t *testing.T) { smoke(t, os.Getenv("REDIS")) }

func BenchmarkPushDrain(b *testing.B) {
	ctx := context.Background()
	c, _ := Open(Config{Redis: os.Getenv("REDIS")})
	defer c.Close()
	c.rdb.FlushAll(ctx)
	for _, shards := range []int{5, 50} {
		q, err := c.Register(ctx, lowkiq.Queue{Name: fmt.Sprint("b", shards), Shards: shards})
		if err != nil { b.Fatal(err) }
		jobs := make([]lowkiq.Push, 100000)
		for i := range jobs { jobs[i] = lowkiq.Push{ID: fmt.Sprintf("id-%d", i), Payload: []byte("0123456789abcdef")} }
		b.Run(fmt.Sprint("push", shards), func(b *testing.B) {
			for b.Loop() {
				c.rdb.ConfigResetStat(ctx)
				for i := 0; i < len(jobs); i += 10000 {
					if _, err := q.Push(ctx, jobs[i:i+10000]...); err != nil { b.Fatal(err) }
				}
				b.StopTimer()
				fmt.Println(c.rdb.Info(ctx, "commandstats").Val())
				fmt.Println(c.rdb.Info(ctx, "memory").Val()[:30], c.rdb.DBSize(ctx))
				c.rdb.ConfigResetStat(ctx)
				t0 := time.Now()
				done := make(chan int)
				for i := range shards {
					go func() {
						s := q.Shard(i)
						o, _ := s.Owner(ctx)
						cl, err := s.Claim(ctx, "n/1.1", Self, o)
						if err != nil { b.Error(err) }
						var acks []Acks
						n := 0
						for {
							p, err := cl.Pop(ctx, PopRequest{IDs: 100, Bytes: 1 << 20, Acks: acks})
							if err != nil { b.Error(err) }
							if len(p.Jobs) == 0 { break }
							n += len(p.Jobs)
							ids := make([]string, len(p.Jobs))
							for i := range ids { ids[i] = p.Jobs[i].ID }
							acks = []Acks{{p.Flight, ids}}
						}
						done <- n
					}()
				}
				sum := 0
				for range shards { sum += <-done }
				fmt.Println("drain/s", float64(sum)/time.Since(t0).Seconds(), sum)
				fmt.Println(c.rdb.Info(ctx, "commandstats").Val())
				b.StartTimer()
			}
			b.ReportMetric(float64(100000*b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
