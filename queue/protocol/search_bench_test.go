package protocol_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// usedCPU returns the CPU time that Redis has used.
func usedCPU(b *testing.B, db *redisdb.DB) (used time.Duration) {
	b.Helper()
	text, err := db.ForTests().Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, found := range cpuRule.FindAllStringSubmatch(text, -1) {
		seconds, _ := strconv.ParseFloat(found[1], 64)
		used += time.Duration(seconds * float64(time.Second))
	}
	return used
}

// BenchmarkSearch searches 1,000,000 jobs of 100 bytes. Each ten thousandth has a tag. An op is a search. The benchmark
// reports the share of the time for which Redis works, and the time for a job.
func BenchmarkSearch(b *testing.B) {
	q, _, _ := benchQueue(b, 16, 0)
	for from := 0; from < 1_000_000; from += 10_000 {
		jobs := make([]lowkiq.Push, 10_000)
		for i := range jobs {
			jobs[i] = job(fmt.Sprint("order-", from+i), fmt.Sprintf(`{"customer":"c%d","state":"paid","note":"%060d"}`, (from+i)%5000, i))
		}
		jobs[0].Header = map[string]string{"tag": "vip"}
		if _, err := q.Push(b.Context(), jobs...); err != nil {
			b.Fatal(err)
		}
	}
	for _, s := range []browse.Search{{Contains: "nowhere"}, {Contains: `"customer":"c4711"`}, {Tag: "vip"}, {Error: "no stock"}, {Contains: "c47", Tag: "vip", Error: "stock"}} {
		b.Run(fmt.Sprintf("contains=%s/tag=%s/error=%s", s.Contains, s.Tag, s.Error), func(b *testing.B) {
			looked, pages, found := 0, 0, 0
			cpu := usedCPU(b, q.Shard(0).DB())
			for b.Loop() {
				for query := (browse.Query{Search: s}); ; {
					page, err := browse.Of(q).Page(b.Context(), query)
					if err != nil {
						b.Fatal(err)
					}
					looked, pages, found = looked+page.Examined, pages+1, found+len(page.Jobs)
					if query.Cursor = page.Next; page.Next == "" {
						break
					}
				}
			}
			cpu = usedCPU(b, q.Shard(0).DB()) - cpu
			b.ReportMetric(100*cpu.Seconds()/b.Elapsed().Seconds(), "%-of-redis")
			b.ReportMetric(float64(cpu.Nanoseconds())/1000/float64(looked), "redis-us/job")
			b.ReportMetric(float64(looked)/float64(b.N), "jobs/op")
			b.ReportMetric(float64(pages)/float64(b.N), "pages/op")
			b.ReportMetric(float64(found)/float64(b.N), "found/op")
		})
	}
}
