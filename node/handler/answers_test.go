//go:build linux

package handler

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/wire"
)

// answering returns two handlers that answer each batch with the text: a child and an endpoint.
func answering(t *testing.T, text string) map[string]lowkiq.Handler {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	respond := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	return map[string]lowkiq.Handler{
		"exec": running(t, ExecConfig{Argv: loop(`cat answer`), Dir: dir}),
		"http": endpoint(t, HTTPConfig{}, respond),
	}
}

// twoJobs returns a batch of the ids a and b.
func twoJobs() *lowkiq.Batch {
	b := batch()
	b.Jobs = append(b.Jobs, lowkiq.Job{ID: "b", Payloads: []lowkiq.Payload{{Score: 1, Data: []byte("2")}}})
	return b
}

// TestAnswers checks that an answer of a child or an endpoint counts like the result of a Go handler, or not at all.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		want   string // of the error
		a, b   *lowkiq.Answered
	}{
		"none": {`{"ok":true}`, "", nil, nil},
		"both": {`{"ok":true,"answers":{"a":{"result":{"n":[1]},"state":{"$base64":"AP8="}},"b":{"result":""}}}`, "",
			&lowkiq.Answered{Result: []byte(`{"n":[1]}`), State: []byte("\x00\xff"), Stated: true}, &lowkiq.Answered{Result: []byte{}}},
		"a state that ends": {`{"ok":true,"answers":{"a":{"state":null}}}`, "", &lowkiq.Answered{Stated: true}, nil},
		"beside a failure":  {`{"failed":{"a":"no stock"},"answers":{"a":{"state":1},"b":{"result":2}}}`, "a: no stock", nil, &lowkiq.Answered{Result: []byte("2")}},
		"beside a burial":   {`{"bury":{"b":"never"},"answers":{"a":{"result":2}}}`, "b: never", &lowkiq.Answered{Result: []byte("2")}, nil},
		"of a failure":      {`{"ok":false,"error":"away","answers":{"a":{"state":1}}}`, "away", nil, nil},
		"of a stranger":     {`{"ok":true,"answers":{"a":{"state":1},"c":{"state":1}}}`, `handler answered about "c", which is not in the batch: all of it counts as failed`, nil, nil},
		"of another type":   {`{"ok":true,"answers":{"a":{"state":1},"b":7}}`, `answers: id "b": must be an object with a result, a state, follow-ups or some of them`, nil, nil},
		"with follow-ups": {`{"ok":true,"answers":{"a":{"then":[{"queue":"mail","id":"u","payload":{"n":1},"perform_in":1763600000}]},"b":{"then":[]}}}`, "",
			&lowkiq.Answered{Then: []lowkiq.FollowUp{{Queue: "mail", Push: lowkiq.Push{ID: "u", Payload: []byte(`{"n":1}`), PerformAt: time.Unix(1763600000, 0)}}}}, nil},
		"with a bad follow-up": {`{"ok":true,"answers":{"a":{"state":1},"b":{"then":[{"queue":"mail"}]}}}`, `answers: id "b": then: [0].id: missing`, nil, nil},
		"too long": {`{"ok":true,"answers":{"a":{"state":"` + strings.Repeat("x", lowkiq.MaxStateBytes) + `"},"b":{"state":1}}}`, "a: its state is 65538 bytes, at most 65536 are allowed",
			nil, &lowkiq.Answered{State: []byte("1"), Stated: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, h := range answering(t, c.answer) {
				b := twoJobs()
				err := h.Handle(t.Context(), b)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: got %v, want %q", kind, err, c.want)
				}
				said := b.Answers()
				for id, want := range map[string]*lowkiq.Answered{"a": c.a, "b": c.b} {
					got, ok := said[id]
					if ok != (want != nil) || ok && (!bytes.Equal(got.Result, want.Result) || (got.Result == nil) != (want.Result == nil) ||
						!bytes.Equal(got.State, want.State) || (got.State == nil) != (want.State == nil) || got.Stated != want.Stated || !reflect.DeepEqual(got.Then, want.Then)) {
						t.Errorf("%s: got %+v answered of %s, want %+v", kind, got, id, want)
					}
				}
			}
		})
	}
}

// TestAnswersUpToTheLimit checks that an answer has room for the longest result and state of each job in base64, and
// for as much again. A longer answer is not read to its end.
func TestAnswersUpToTheLimit(t *testing.T) {
	t.Parallel()
	raw := func(size int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, size)) }
	one := fmt.Sprintf(`{"result": {"$base64": %q}, "state": {"$base64": %q}}`, raw(lowkiq.MaxResultBytes), raw(lowkiq.MaxStateBytes))
	full := fmt.Sprintf(`{"ok":true,"answers":{"a":%s,"b":%[1]s}}`, strings.ReplaceAll(one, "/", `\/`))
	most := answerLimit(twoJobs())
	if most != 1<<20+2*655360 {
		t.Errorf("got a limit of %d bytes, and docs/handlers.md says 1 MiB and 640 KiB for each job", most)
	}
	if len(full) > most {
		full = fmt.Sprintf(`{"ok":true,"answers":{"a":%s,"b":%[1]s}}`, one)
	}
	full = full[:len(full)-1] + strings.Repeat(" ", most-len(full)) + "}"
	for kind, h := range answering(t, full) {
		b := twoJobs()
		if err := h.Handle(t.Context(), b); err != nil {
			t.Errorf("%s: got %.200v, want an answer of %d bytes to be taken", kind, err, most)
		}
		for id, got := range b.Answers() {
			if len(got.Result) != lowkiq.MaxResultBytes || len(got.State) != lowkiq.MaxStateBytes {
				t.Errorf("%s: %s: got %d and %d bytes", kind, id, len(got.Result), len(got.State))
			}
		}
	}
	for kind, h := range answering(t, full[:len(full)-1]+" }") {
		b := twoJobs()
		if err := h.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("longer than %d bytes", most)) || len(b.Answers()) != 0 {
			t.Errorf("%s: got %.200v and %d answers of an answer that is too long", kind, err, len(b.Answers()))
		}
	}
}

// TestAnswersWithoutEnd checks that the reader of an endless answer stops at the limit.
func TestAnswersWithoutEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 1)
	endless := func(w http.ResponseWriter, r *http.Request) {
		for text := bytes.Repeat([]byte{'{'}, 64<<10); ; {
			if _, err := w.Write(text); err != nil {
				ended <- struct{}{}
				return
			}
		}
	}
	for kind, h := range map[string]lowkiq.Handler{
		"exec": running(t, ExecConfig{Argv: loop(`tr '\0' '{' </dev/zero`)}),
		"http": endpoint(t, HTTPConfig{}, endless),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		if err := h.Handle(ctx, batch()); err == nil || !strings.Contains(err.Error(), "longer than 1703936 bytes") {
			t.Errorf("%s: got %.200v, want it left", kind, err)
		}
		cancel()
	}
	<-ended
}

// stateful answers with the state that each job came with and one more entry, and with a result that
// counts the calls. A job without payloads ends its state.
const stateful = `
import json, sys
for line in sys.stdin.buffer:
    said = {}
    for job in json.loads(line)["jobs"]:
        state = job.get("state")
        said[job["id"]] = {"state": [state] if job["payloads"] else None, "result": job.get("callers")}
    print(json.dumps({"ok": True, "answers": said}), flush=True)
`

// statefulEndpoint does the same in Go.
func statefulEndpoint(w http.ResponseWriter, r *http.Request) {
	var batch struct {
		Jobs []struct {
			ID       string
			Payloads []any
			Callers  *int
			State    json.RawMessage
		}
	}
	_ = json.NewDecoder(r.Body).Decode(&batch)
	said := map[string]any{}
	for _, job := range batch.Jobs {
		state := any([]any{job.State})
		if len(job.Payloads) == 0 {
			state = nil
		}
		said[job.ID] = map[string]any{"state": state, "result": job.Callers}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"ok": true, "answers": said})
}

// TestAnswersKeepAState checks that a state goes from one job of an id to the next, until it is deleted.
func TestAnswersKeepAState(t *testing.T) {
	t.Parallel()
	for kind, h := range map[string]lowkiq.Handler{
		"exec": running(t, ExecConfig{Argv: []string{python(t), "-c", stateful}}),
		"http": endpoint(t, HTTPConfig{}, statefulEndpoint),
	} {
		for first, want := range map[string]string{
			"":              `[[""]]`,
			"none":          `[[null]]`,
			"\x00no JSON":   `[[{"$base64":"AG5vIEpTT04="}]]`,
			"null":          `[[{"$base64":"bnVsbA=="}]]`,
			`{"n":1.50}`:    "",
			"{\n\"n\": 1 }": `[[{"$base64":"ewoibiI6IDEgfQ=="}]]`,
		} {
			state := []byte(first)
			if first == "none" {
				state = nil
			}
			for round := range 3 {
				b := batch()
				b.Jobs[0].State, b.Jobs[0].Callers = state, round
				if round == 2 {
					b.Jobs[0].Payloads = nil
				}
				if err := h.Handle(t.Context(), b); err != nil {
					t.Fatalf("%s: %q: %v", kind, first, err)
				}
				said := b.Answers()["a"]
				if wanted := []string{"null", "1", "2"}[round]; string(said.Result) != wanted || !said.Stated || (said.State == nil) != (round == 2) {
					t.Errorf("%s: %q, round %d: got %+v", kind, first, round, said)
				}
				if state = said.State; round == 1 && want != "" && string(state) != want {
					t.Errorf("%s: %q: got the state %s, want %s", kind, first, state, want)
				}
			}
		}
	}
}

// TestAnswersRefusedReplaceTheChild checks that a refused answer is an error of the batch, which says why. The node
// then replaces the child, as after any other invalid text.
func TestAnswersRefusedReplaceTheChild(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`n=$((n+1)); echo "{\"ok\":true,\"answers\":{\"a\":{\"result\":$n,\"then\":7}}}"`)})
	for range 2 {
		b := batch()
		err := e.Handle(t.Context(), b)
		var nonsense *wire.Error
		if !errors.As(err, &nonsense) || !strings.Contains(err.Error(), `"{\"ok\":true,\"answers\":{\"a\":{\"result\":1,`) || len(b.Answers()) != 0 {
			t.Errorf("got %v, want the first answer of a new child refused", err)
		}
	}
}
