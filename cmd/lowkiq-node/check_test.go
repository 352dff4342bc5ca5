//go:build unix

package main

import (
	"testing"

	"github.com/lowkiq/lowkiq/queue/audit"
)

// An id need not be text.
func TestAnswerOfCheck(t *testing.T) {
	t.Parallel()
	answer := answerOf(audit.Report{Faults: []audit.Fault{{ID: "\xff", Shard: 0}, {ID: "a", Shard: -1}}}, 0)
	if f := answer.Faults[0]; f.Text != nil || string(f.Base64) != "\xff" || f.Shard == nil {
		t.Errorf("got %+v, want the id as bytes, and a shard", f)
	}
	if f := answer.Faults[1]; f.ID() != "a" || f.Base64 != nil || f.Shard != nil {
		t.Errorf("got %+v, want the id as text, and no shard", f)
	}
}
