package membership

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/golden"
)

// TestGolden reads what every release has gossiped, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	meta := Meta{N: 3, Raft: 7947, Draining: true, RaftInfo: `{"server":"B#7.1"}`, Leaving: true}
	text, err := meta.encode()
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "meta", string(text), func(t *testing.T, stored string) {
		if got := decodeMeta([]byte(stored)); got != meta {
			t.Errorf("got %+v, want %+v", got, meta)
		}
	})
}

// FuzzMeta: whatever a stranger gossips is read or taken for nothing.
func FuzzMeta(f *testing.F) {
	for _, seed := range []string{`{"n":3,"r":7947,"d":true,"s":"x","l":true}`, `{"n":1,"later":[1]}`, `{"n":"x"}`, "", "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := decodeMeta(data).encode()
		if err != nil && len(data) < MaxMeta/6 { // a byte may be six in JSON
			t.Errorf("%q was read and cannot be written: %v", data, err)
		}
		if err == nil && decodeMeta(text) != decodeMeta(data) {
			t.Errorf("%q: written as %q, which is read as something else", data, text)
		}
	})
}
