package claims

import (
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq/internal/identity"
)

// How often a queue with a wrong sum is looked at.
func TestMismatch(t *testing.T) {
	t.Parallel()
	w := &orphanScanner[*worker]{mismatches: map[string]*mismatch{}}
	var read []int
	for look := range 40 {
		if w.due("q") {
			read = append(read, look)
		}
	}
	if want := []int{1, 3, 7, 15, 31}; !slices.Equal(read, want) {
		t.Errorf("claims were read at looks %v, want %v", read, want)
	}
}

// What the leases of all nodes add up to.
func TestSumsOfLeases(t *testing.T) {
	t.Parallel()
	handled, owned := sums([]identity.Lease{
		{Queues: map[string]int{"orders": 3, "mail": 0}}, {Queues: map[string]int{"orders": 2}},
	})
	if !handled["mail"] || handled["ghost"] || owned["orders"] != 5 || owned["mail"] != 0 {
		t.Errorf("got handled %v, owned %v", handled, owned)
	}
}
