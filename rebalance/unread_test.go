package rebalance

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A process of an older release that cannot read what the group writes leaves the group:
// it has no vote, leads nobody, follows no plan that it would only half know, and says so.
// Once it can read again it comes back.
func TestUnreadEntry(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(30*time.Second, "three voters", func() bool { return len(w.voters()) == 3 })
		old := w.alive()[slices.IndexFunc(w.alive(), func(p *process) bool { return p != w.leader() })]
		was := old.agent.Assignment()
		old.older.Store(true)
		w.start("n4")
		w.eventually(10*time.Second, "it leaves the group", func() bool { return old.agent.Seat().Server == "" })
		if got := old.agent.Status().Unread; !strings.Contains(got, "unknown command 99") {
			t.Errorf("its status says %q, want what it could not read", got)
		}
		w.eventually(60*time.Second, "the others go on with another voter", func() bool {
			voters := w.voters()
			return len(voters) == 3 && !slices.ContainsFunc(voters, func(id string) bool { return bootOf(id) == old.boot })
		})
		w.leader().kill()
		w.eventually(60*time.Second, "another one leads", func() bool { return w.leader() != nil })
		for end := time.Now().Add(2 * outsideFor * ttl); time.Now().Before(end); time.Sleep(ttl / 6) {
			if status := old.agent.Status(); status.Leading || slices.ContainsFunc(w.voters(), func(id string) bool { return bootOf(id) == old.boot }) {
				t.Fatalf("it leads or votes: %+v, voters %v", status, w.voters())
			}
		}
		if old.agent.Assignment() != was {
			t.Error("it works by another assignment, want the last one that it could read")
		}
		old.older.Store(false)
		w.eventually((outsideFor+5)*ttl, "it is back", func() bool { return w.agreed() && old.agent.Status().Unread == "" })
	})
}
