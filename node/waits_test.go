package node

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestWaitsTold checks that a lease shows what lanes wait for after two successive readings, until there was no such wait for a
// while, and that it changes for no other reason.
func TestWaitsTold(t *testing.T) {
	t.Parallel()
	rate, slot := protocol.Wait{For: protocol.ForRate, Of: "1/s"}, protocol.Wait{For: protocol.ForSlot, Of: "8"}
	none := map[string][]protocol.Wait{}
	some := map[string][]protocol.Wait{"orders": {rate}}
	both := map[string][]protocol.Wait{"orders": {rate, slot}}
	var w waits
	look := 0
	for _, step := range []struct {
		now     map[string][]protocol.Wait
		changed bool
		told    string
	}{
		{some, false, "map[]"}, {none, false, "map[]"}, {some, false, "map[]"}, // too seldom
		{some, true, "map[orders:[{rate 1/s}]]"}, {both, false, "map[orders:[{rate 1/s}]]"},
		{both, true, "map[orders:[{slot 8} {rate 1/s}]]"}, {some, false, "map[orders:[{slot 8} {rate 1/s}]]"},
		{some, false, "map[orders:[{slot 8} {rate 1/s}]]"}, {some, false, "map[orders:[{slot 8} {rate 1/s}]]"}, {some, false, "map[orders:[{slot 8} {rate 1/s}]]"},
		{some, true, "map[orders:[{rate 1/s}]]"}, {none, false, "map[orders:[{rate 1/s}]]"}, {some, false, "map[orders:[{rate 1/s}]]"},
		{none, false, "map[orders:[{rate 1/s}]]"}, {none, false, "map[orders:[{rate 1/s}]]"}, {none, false, "map[orders:[{rate 1/s}]]"}, {none, false, "map[orders:[{rate 1/s}]]"},
		{none, true, "map[]"}, {none, false, "map[]"},
	} {
		look++
		if changed := w.addReading(step.now); changed != step.changed || fmt.Sprint(w.shownWaits()) != step.told {
			t.Errorf("look %d: got %t, %v, want %t, %s", look, changed, w.shownWaits(), step.changed, step.told)
		}
	}
	many := map[string][]protocol.Wait{}
	for i := range 3 * maxWaitQueues {
		many[fmt.Sprint("q", i)] = []protocol.Wait{rate}
	}
	w.addReading(many)
	if w.addReading(many); len(w.shownWaits()) != maxWaitQueues {
		t.Errorf("got %d queues told, want %d", len(w.shownWaits()), maxWaitQueues)
	}
}
