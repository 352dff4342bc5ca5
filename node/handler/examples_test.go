//go:build linux

package handler

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// example returns the absolute path of a file in examples/.
func example(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join("../../examples", path))
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: python3 is not on PATH, so this example of examples/ was NOT run; install python3 to run it")
	}
	return path
}

// two returns a batch of an id that succeeds and an id that is told to fail.
func two() *lowkiq.Batch {
	b := batch()
	b.Jobs[0].ID = "café/1"
	b.Jobs[0].Payloads = append(b.Jobs[0].Payloads, lowkiq.Payload{Score: 2, Data: []byte("\x00\xff")}, lowkiq.Payload{Score: 3})
	b.Jobs = append(b.Jobs, lowkiq.Job{ID: "bad", Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(`"fail"`)}}})
	return b
}

// onlyBadFails checks the answer to two.
func onlyBadFails(t *testing.T, err error) {
	t.Helper()
	var failed lowkiq.Failed
	if !errors.As(err, &failed) || len(failed) != 1 || failed["bad"] == nil || failed["bad"].Error() != "ValueError: told to fail" {
		t.Errorf("got %v, want the id bad, and only it, to fail", err)
	}
}

func TestPythonExample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: []string{python(t), example(t, "python/handler.py")}, Dir: dir, Processes: 2})
	for range 3 { // again and again changes nothing
		onlyBadFails(t, e.Handle(t.Context(), two()))
	}
	if err := e.Handle(t.Context(), batch()); err != nil {
		t.Errorf("got %v, want the batch done", err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "state", "caf%C3%A9%2F1"))
	if want := "{\"b\": 1}\n00ff\n\"\"\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// The count goes from job to job as the state of its id. It ends when it is reset.
func TestPythonCounterExample(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: []string{python(t), example(t, "python/counter.py")}})
	states := map[string][]byte{}
	for _, want := range []struct{ payload, result, state string }{
		{`1`, "1", `{"count":1}`}, {`1`, "2", `{"count":2}`}, {`"reset"`, "0", ""}, {`1`, "1", `{"count":1}`},
	} {
		b := batch()
		b.Jobs[0].Payloads[0].Data = []byte(want.payload)
		b.Jobs = append(b.Jobs, b.Jobs[0])
		b.Jobs[1].ID = "\xff"
		for i := range b.Jobs {
			b.Jobs[i].State = states[b.Jobs[i].ID]
		}
		if err := e.Handle(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "\xff"} {
			got := b.Answers()[id]
			if states[id] = got.State; string(got.Result) != want.result || string(got.State) != want.state || !got.Stated {
				t.Errorf("%q: got the result %s and the state %s, want %s and %s", id, got.Result, got.State, want.result, want.state)
			}
		}
	}
}

func TestShellExample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: []string{"sh", example(t, "shell/handler.sh")}, Dir: dir})
	for range 2 {
		if err := e.Handle(t.Context(), two()); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "batches.ndjson"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err != nil || len(lines) != 2 || decode(t, []byte(lines[1])).Jobs[0].ID != "café/1" {
		t.Errorf("got %q, %v, want two batches", text, err)
	}
	bad := running(t, ExecConfig{Argv: []string{"sh", example(t, "shell/handler.sh")}, Dir: dir, Env: []string{"HANDLER_OUT=/no/such/directory/file"}})
	if err := bad.Handle(t.Context(), two()); err == nil || err.Error() != "cannot write the file" {
		t.Errorf("got %v, want the failure of the script", err)
	}
}

func TestPythonEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: []string{python(t), example(t, "python/events.py")}, Dir: dir})
	buried := &lowkiq.Event{Kind: lowkiq.Buried, Shard: lowkiq.Shard{Queue: "orders"}, Jobs: []lowkiq.Ended{{Job: lowkiq.Job{ID: "a"}, Err: errors.New("no stock")}}}
	for _, one := range []*lowkiq.Event{event(), buried} {
		if err := e.Event(t.Context(), one); err != nil {
			t.Error(err)
		}
	}
	var failed lowkiq.Failed
	if err := e.Handle(t.Context(), two()); !errors.As(err, &failed) || len(failed) != 1 {
		t.Errorf("got %v, want one id to fail", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "events"))
	if want := "recovered orders/3 12 jobs of n2/1\nburied orders/0 a: no stock\n"; err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
}

func TestHTTPExample(t *testing.T) {
	t.Parallel()
	server := exec.Command(python(t), example(t, "http/server.py"), "0")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("got %q, %v, want the URL", line, err)
	}
	h, err := NewHTTP(HTTPConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	for range 3 {
		b := two()
		onlyBadFails(t, h.Handle(t.Context(), b))
		if said := b.Answers(); len(said) != 1 || string(said["café/1"].Result) != "3" {
			t.Errorf("got %+v answered, want that café/1 has had 3 payloads", said)
		}
	}
	old := batch()
	old.Fence--
	if err := h.Handle(t.Context(), old); err == nil || !strings.Contains(err.Error(), "409 Conflict") {
		t.Errorf("got %v, want a lower fence refused", err)
	}
}
