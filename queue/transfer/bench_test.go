package transfer_test

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// BenchmarkImport imports 5,000 entries in a call, as migrate does. An op is an entry.
func BenchmarkImport(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(i int, e *transfer.Entry)
	}{
		{"fresh", func(int, *transfer.Entry) {}},
		{"mixed", func(i int, e *transfer.Entry) { // of 100 ids 10 have failed, 5 of them wait; 10 have a few payloads, 2 are in the morgue
			switch i % 100 {
			case 0, 10, 20, 30, 40:
				e.RetryCount, e.Error = 3, "a message of usual length: undefined method for nil"
			case 1, 11, 21, 31, 41:
				e.RetryCount, e.Error, e.Due = 3, "a message of usual length: undefined method for nil", 4_000_000_000_000_000
			case 2, 12:
				e.Morgue = true
			case 3, 13, 23, 33, 43, 53, 63, 73, 83, 93:
				for k := range 3 {
					e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(k), Data: fmt.Appendf(nil, "payload %d", k)})
				}
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			client, err := protocol.Open(protocol.Config{Redis: redistest.Start(b).URL(), Cluster: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			q, err := client.Register(b.Context(), lowkiq.Queue{Name: "q", Shards: 8})
			if err != nil {
				b.Fatal(err)
			}
			entries := make([]transfer.Entry, b.N)
			for i := range entries {
				entries[i] = transfer.Entry{Number: int64(i + 1), ID: fmt.Sprint("id", i), RetryCount: -1, Payloads: []transfer.Payload{{Score: 1.5e9 + float64(i), Data: []byte("forty bytes, as a payload of arguments is")}}}
				c.change(i, &entries[i])
			}
			b.ResetTimer()
			for from := 0; from < b.N; from += 5000 {
				if _, err := transfer.Import(b.Context(), q, "old", entries[from:min(b.N, from+5000)]...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ids/s")
		})
	}
}
