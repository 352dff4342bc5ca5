package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/wire"
)

// examples/ruby/forward.rb pushes what a worker of Ruby's Lowkiq is handed, in order, and
// fails when a job was not taken.
func TestForwardFromRuby(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ruby"); err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so examples/ruby was NOT run")
	}
	for _, good := range []bool{true, false} {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = pushedIDs(t, w, r, good)
		}))
		script := fmt.Sprintf(`Forward.new(%q, "t0k").call({ 7 => [{ v: 1 }, { v: 2 }], "b" => [""] })`, server.URL+"/api/v1/queues/orders/jobs")
		out, err := exec.CommandContext(t.Context(), "ruby", "-r", "../../examples/ruby/forward.rb", "-e", script).CombinedOutput()
		server.Close()
		if want := `7 {"v":1}, 7 {"v":2}, b `; strings.Join(got, ", ") != want || (err == nil) != good {
			t.Errorf("got %q, %v %s, want %q taken: %t", got, err, out, want, good)
		}
	}
}

// pushedIDs reads a push as the API does, and answers.
func pushedIDs(t *testing.T, w http.ResponseWriter, r *http.Request, ok bool) (got []string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	jobs, err := wire.ParseJobs(body)
	if err != nil || r.Header.Get("Authorization") != "Bearer t0k" {
		t.Errorf("got %v, authorization %q", err, r.Header.Get("Authorization"))
	}
	var results []map[string]any
	for _, job := range jobs {
		got = append(got, job.ID+" "+string(job.Payload))
		results = append(results, map[string]any{"id": job.ID, "ok": ok, "merged": false})
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"results": results}); err != nil {
		t.Error(err)
	}
	return got
}
