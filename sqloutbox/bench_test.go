package sqloutbox

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// BenchmarkRelay measures rows per second of an outbox that is full, and of the transaction that has filled it. A
// transaction of PostgreSQL locks each of its ids.
func BenchmarkRelay(b *testing.B) {
	const rows = 5000
	for _, open := range []func(testing.TB) *database{newSQLite, newPostgres} {
		db := open(b)
		b.Run(db.driver, func(b *testing.B) {
			client := newClient(b, redistest.Start(b).URL())
			if _, err := client.Register(b.Context(), lowkiq.Queue{Name: "mail", Shards: 16}); err != nil {
				b.Fatal(err)
			}
			run := newRun(testRelay(db, client))
			pushes := make([]lowkiq.Push, rows)
			for b.Loop() {
				b.StopTimer()
				for i := range pushes {
					pushes[i] = lowkiq.Push{ID: fmt.Sprint("user-", i), Payload: []byte(`{"state":"paid"}`)}
				}
				db.add(b, "mail", pushes...)
				b.StartTimer()
				for more := true; more; {
					var err error
					if more, err = run.turn(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
