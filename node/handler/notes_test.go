//go:build linux

package handler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// noted is a batch of a, b and ended, and its notes. Notes about b are refused.
func noted() (*lowkiq.Batch, *[]string) {
	b := lowkiq.NewBatch(lowkiq.Shard{Queue: "orders"}, 7, 17, append(twoJobs().Jobs, lowkiq.Job{ID: "ended"}))
	var got []string
	b.NotesTo(lowkiq.NoteFunc(func(_ context.Context, _ *lowkiq.Batch, id string, n lowkiq.Note) error {
		switch id {
		case "a":
			got = append(got, fmt.Sprintf("%v %s %s", n.Progress, n.Log, n.State))
			return nil
		case "ended":
			return lowkiq.ErrEnded
		}
		return fmt.Errorf("job %q is not in the batch: %w", id, lowkiq.ErrNote)
	}))
	return b, &got
}

// The notes of a child before its answer are stored. The answer is the line that follows them.
func TestExecNotes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines string
		noted []string
		want  string // of the error
	}{
		"two":           {`{"note":{"a":{"progress":0.1}}}\n{"note":{"a":{"progress":0.5,"log":"page 12","state":{"page":12}}}}\n{"ok":true}`, []string{"0.1  ", `0.5 page 12 {"page":12}`}, ""},
		"of a failure":  {`{"note":{"a":{"progress":0.1}}}\n{"ok":false,"error":"away"}`, []string{"0.1  "}, "away"},
		"what ended":    {`{"note":{"ended":{"progress":0.1}}}\n{"ok":true}`, nil, ""},
		"of a stranger": {`{"note":{"c":{"progress":0.1}}}\n{"ok":true}`, nil, `its note of job "c": bad note: it is not in the batch`},
		"refused":       {`{"note":{"b":{"progress":0.1}}}\n{"ok":true}`, nil, `its note: job "b" is not in the batch: bad note`},
		"half of it":    {`{"note":{"a":{"progress":0.1},"c":{"progress":0.1}}}\n{"ok":true}`, nil, `its note of job "c": bad note: it is not in the batch`},
		"twice":         {`{"note":{"a":{"progress":0.1},"a":{"progress":0.2}}}\n{"ok":true}`, nil, `its note of job "a": bad note: it is there twice`},
		"too long":      {`{"note":{"a":{"log":"` + strings.Repeat("x", lowkiq.MaxLogBytes+1) + `"}}}\n{"ok":true}`, nil, "the line has 1025 bytes, at most 1024 are allowed"},
		"malformed":     {`{"note":{"a":{"progress":2}}}\n{"ok":true}`, nil, `wrote the note "{\"note\":{\"a\":{\"progress\":2}}}" (line 1, column 26: id "a": progress: must be a number from 0 to 1)`},
		"of no form":    {`{"notes":{"a":{"progress":1}}}\n{"ok":true}`, nil, "instead of an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, got := noted()
			err := running(t, ExecConfig{Argv: loop("printf '" + c.lines + `\n'`)}).Handle(t.Context(), b)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if !slices.Equal(*got, c.noted) {
				t.Errorf("got %q noted, want %q", *got, c.noted)
			}
		})
	}
}

// A note after the answer would count for the next batch.
func TestExecNoteAfterTheAnswer(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`printf '{"ok":true}\n{"note":{"a":{"progress":1}}}\n'`)})
	for range 3 {
		b, got := noted()
		if err := e.Handle(t.Context(), b); err != nil && !strings.Contains(err.Error(), "while it had no batch") {
			t.Errorf("got %v", err)
		}
		if len(*got) > 0 {
			t.Errorf("got %q noted, want nothing", *got)
		}
	}
}

// A child that writes notes without end ends with its batch.
func TestExecNotesForEver(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`while :; do echo '{"note":{"a":{"progress":0.5}}}'; done`)})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, lowkiq.ErrTimeout)
	defer cancel()
	b, _ := noted()
	if err := e.Handle(ctx, b); !errors.Is(err, lowkiq.ErrTimeout) {
		t.Errorf("got %v, want the handler timeout", err)
	}
}
