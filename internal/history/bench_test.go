package history

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// A million events: half a million calls of ten thousand ids.
func BenchmarkCheckMillionEvents(b *testing.B) {
	const calls, ids = 500_000, 10_000
	var r run
	for n := range calls {
		id := fmt.Sprintf("some/path/file%d.go", n%ids)
		r.pushed = append(r.pushed, pushes(id, float64(n))...)
		c := ok(int64(10*n+1), int64(10*n+9), id, float64(n))
		c.shard = n % 16
		r.calls = append(r.calls, c)
	}
	text := r.text(b)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		v, err := CheckReader(Config{ShardConcurrency: 1}, slices.Values(r.pushed), bytes.NewReader(text))
		if err != nil || !v.OK() {
			b.Fatal(err, v.Words())
		}
	}
}
