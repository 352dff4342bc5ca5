package main

import (
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// The sample queue's handler shows what it gets, and gives it back to who has called.
func TestDevAnswersCalls(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	payloads := []lowkiq.Payload{{Score: 1, Data: []byte("one")}, {Score: 2, Data: []byte("two"), Header: `{"tag":"vip"}`}}
	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: sampleQueue}, 1, 1, []lowkiq.Job{{ID: "a", Payloads: payloads, Callers: 1},
		{ID: "b", Payloads: payloads[:1]}})
	if err := (&printer{out: &out}).Handle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if said := batch.Answers(); len(said) != 1 || string(said["a"].Result) != "two" || said["a"].Stated {
		t.Errorf("got %+v answered, want the last payload for a alone", said)
	}
	want := `sample/0: id "a", score 1.000000, payload one
sample/0: id "a", score 2.000000, payload two, header {"tag":"vip"}
sample/0: id "b", score 1.000000, payload one
`
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}
