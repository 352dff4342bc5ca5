package demodata

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestEventsAreWhatTheFactsSay(t *testing.T) {
	type key struct{ id, payload string }
	count, perID, payloads := 0, map[string]int{}, map[key]bool{}
	for e := range Events() {
		count++
		perID[e.ID]++
		payloads[key{e.ID, string(e.Payload)}] = true
		if e.Score != float64(count) {
			t.Fatalf("event %d: got score %v, want %d", count, e.Score, count)
		}
		checkPayload(t, e)
	}
	if count != Count {
		t.Errorf("got %d events, want %d", count, Count)
	}
	if len(perID) != IDs {
		t.Errorf("got %d ids, want %d", len(perID), IDs)
	}
	if perID["CHANGELOG.md"] != Hottest {
		t.Errorf("got %d events of CHANGELOG.md, want %d", perID["CHANGELOG.md"], Hottest)
	}
	if len(payloads) != Count {
		t.Errorf("got %d different (id, payload), want %d: equal payloads would merge", len(payloads), Count)
	}
}

func checkPayload(t *testing.T, e Event) {
	t.Helper()
	var compact bytes.Buffer
	if err := json.Compact(&compact, e.Payload); err != nil || !bytes.Equal(compact.Bytes(), e.Payload) {
		t.Fatalf("event %v: payload %s is not compact JSON (%v)", e.Score, e.Payload, err)
	}
	var c Change
	if err := json.Unmarshal(e.Payload, &c); err != nil {
		t.Fatalf("event %v: %v", e.Score, err)
	}
	if c.Commit == "" || c.Time == 0 || c.Blob == "" || (c.Change != "A" && c.Change != "M" && c.Change != "D") {
		t.Fatalf("event %v: got change %+v, want every field set and change one of A, M, D", e.Score, c)
	}
}
