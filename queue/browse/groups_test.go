package browse

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestGroups checks that waiting jobs are counted by the group of their id, and that no more than a bound of them are.
func TestGroups(t *testing.T) {
	t.Parallel()
	client, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 3})
	if err != nil {
		t.Fatal(err)
	}
	j := Of(q)
	var ready, later []lowkiq.Push
	for i := range 30 {
		ready = append(ready, lowkiq.Push{ID: fmt.Sprint("acme:", i)}, lowkiq.Push{ID: fmt.Sprint("plain-", i)})
		later = append(later, lowkiq.Push{ID: fmt.Sprint("late:", i)})
	}
	pushAll(t, j, append(ready, lowkiq.Push{ID: "b:1"}, lowkiq.Push{ID: "c:1"})...)
	pushLater(t, j, later[:7]...)
	got, err := j.Groups(t.Context(), ":")
	want := []GroupCount{{"acme:", 30}, {"late:", 7}, {"b:", 1}, {"c:", 1}}
	if err != nil || !slices.Equal(got.Groups, want) || got.Outside != 30 || got.Examined != 69 || !got.All {
		t.Errorf("got %+v, %v, want %v, 30 outside, all of 69", got, err, want)
	}
	many := make([]lowkiq.Push, MaxExamined)
	for i := range many {
		many[i].ID = fmt.Sprint("many:", i)
	}
	pushAll(t, j, many...)
	got, err = j.Groups(t.Context(), ":")
	if err != nil || got.All || got.Examined < MaxExamined/2 || got.Examined >= MaxExamined/2+groupsPage || got.Groups[0].Group != "many:" {
		t.Errorf("got %d examined, all %t, first %v, %v, want about half of %d", got.Examined, got.All, got.Groups[0], err, MaxExamined)
	}
}
