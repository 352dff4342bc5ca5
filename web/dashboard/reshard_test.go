package dashboard

import (
	"net/http"
	"testing"
)

// resharding reports whether a queue is being resharded.
func (w *world) resharding(queue string) bool {
	w.t.Helper()
	all, err := w.client.Registry().Entries(w.t.Context())
	must(w.t, err)
	return all[queue].Reshard != nil
}

// The form beside the pause shows the cost of a reshard, begins it and cancels it. The page shows the progress.
func TestReshardForm(t *testing.T) {
	w := newWorld(t).fill()
	expect(t, w.get("/queues/orders"), 200, `action="./queues/orders/reshard"`, "Reshard…")
	expect(t, w.post("/queues/orders/reshard", "shards", "many"), 400, "is no number")
	expect(t, w.post("/queues/orders/reshard", "shards", "0"), 400, "the number must be between 1 and 10000")
	expect(t, w.post("/queues/orders/reshard", "shards", "7"), 200, "Reshard queue orders from", "to 7 shards?", "Pause of handlers", `name="confirmed" value="1"`)
	if w.resharding("orders") {
		t.Fatal("the first form has begun a reshard")
	}
	if answer := w.post("/queues/orders/reshard", "shards", "7", "confirmed", "1"); answer.Code != http.StatusSeeOther {
		t.Fatalf("got %d, want 303; %s", answer.Code, answer.Body)
	}
	if !w.resharding("orders") {
		t.Fatal("the confirmed form has begun no reshard")
	}
	expect(t, w.get("/queues/orders"), 200, "to 7 shards: <progress", "Cancel the reshard", "it is being resharded from")
	if answer := w.post("/queues/orders/reshard", "cancel", "1"); answer.Code != http.StatusSeeOther {
		t.Fatalf("got %d, want 303; %s", answer.Code, answer.Body)
	}
	if w.resharding("orders") {
		t.Fatal("the reshard was not cancelled")
	}
}
