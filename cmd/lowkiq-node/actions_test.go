package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

// stepServer answers steps one after another, and keeps the cursors that it was sent.
func stepServer(t *testing.T, answers ...string) (url string, cursors *[]string) {
	t.Helper()
	cursors = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Cursor string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		*cursors = append(*cursors, body.Cursor)
		answer := answers[len(*cursors)-1]
		if strings.Contains(answer, "title") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		w.Write([]byte(answer)) //nolint:errcheck // a test
	}))
	t.Cleanup(server.Close)
	return server.URL, cursors
}

// deleteAll deletes all buried jobs; it returns the exit code and what was printed.
func deleteAll(t *testing.T, url, output string) (int, string) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code := execute([]string{"morgue", "delete", "orders", "--all", "--yes", "--node", url, "-o", output},
		&terminal.Streams{In: os.Stdin, Out: out, Err: out})
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

func TestActionGoesStepByStep(t *testing.T) {
	t.Parallel()
	answers := []string{`{"changed":1000,"skipped":2,"left":500,"next":"c1"}`, `{"changed":0,"skipped":0,"left":480,"next":"c2"}`, `{"changed":480,"skipped":0,"left":0,"next":""}`}
	url, cursors := stepServer(t, answers...)
	code, out := deleteAll(t, url, "table")
	if want := "1480 deleted, 2 not there\n"; out != want || code != exit.OK {
		t.Errorf("got %q, exit code %d, want %q", out, code, want)
	}
	if got := strings.Join(*cursors, ","); got != ",c1,c2" {
		t.Errorf("cursors: got %q, want each step's", got)
	}
	url, _ = stepServer(t, answers...)
	if code, out := deleteAll(t, url, "json"); out != `{"changed":1480,"skipped":2,"left":0,"next":""}`+"\n" || code != exit.OK {
		t.Errorf("-o json: got %q, exit code %d", out, code)
	}
}

// Redis goes away in the middle: what was done is told, and where to go on.
func TestActionBrokenOff(t *testing.T) {
	t.Parallel()
	url, _ := stepServer(t, `{"changed":1000,"skipped":0,"left":500,"next":"c1"}`, `{"title":"Service Unavailable","detail":"redis is away","changed":70,"next":"c2"}`)
	code, out := deleteAll(t, url, "table")
	if want := "lowkiq-node: redis is away; 1070 were deleted before, continue with --cursor c2\n"; out != want || code != exit.Unreachable {
		t.Errorf("got %q, exit code %d, want %q", out, code, want)
	}
	url, _ = stepServer(t, `{"title":"Service Unavailable","detail":"redis is away"}`)
	if _, out := deleteAll(t, url, "table"); out != "lowkiq-node: redis is away\n" {
		t.Errorf("at once: got %q", out)
	}
}

func TestActionInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := explainBreak(ctx, web.Changed{Changed: 3, Next: "c9"}, request{wording: wordingOf(browse.Requeue)}, context.Canceled)
	if want := "interrupted; 3 were requeued before, continue with --cursor c9"; err.Error() != want || exitCode(err) != exit.Interrupted {
		t.Errorf("got %v (code %d), want %s", err, exitCode(err), want)
	}
}

// Every action that the API has is a command, but those on all jobs, which are flags. Every command on jobs is an action.
func TestActionsAreTheAPIs(t *testing.T) {
	t.Parallel()
	left := map[*actions.Action]bool{}
	for _, a := range actions.All() {
		if a.NamesIDs() || a.Path != "" && a.Jobs == nil {
			left[a] = true
		}
	}
	delete(left, actions.ChangeRules)  // rules shows them as well
	delete(left, actions.DropOutgoing) // outgoing shows them as well
	ofQueues := []string{"queues delete", "queues reshard"}
	for _, leaf := range grammarOf(t).Leaves(true) {
		command := strings.TrimPrefix(leaf.Parent.Name+" "+leaf.Name, "lowkiq-node ")
		a := actions.OfCommand(command)
		if acts := leaf.Target.FieldByName("DryRun").IsValid() && !slices.Contains(ofQueues, command); acts && (a == nil || a.Jobs == nil) {
			t.Errorf("%s: it is no action on jobs of the table", command)
		}
		delete(left, a)
	}
	for a := range left {
		t.Errorf("%s: no command does it", a.Path)
	}
}
