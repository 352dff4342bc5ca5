package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// deedServer answers steps one after another, and keeps the cursors that it was sent.
func deedServer(t *testing.T, answers ...string) (url string, cursors *[]string) {
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

// doAll runs a deed on all jobs and returns what it printed.
func doAll(t *testing.T, url, output string) (string, error) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := &morgueDelete{All: true}
	c.Yes = true
	c.Node, c.Queue, c.Output = url, "orders", output
	failed := c.Run(&streams{in: os.Stdin, out: out, err: out})
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), failed
}

func TestDeedGoesStepByStep(t *testing.T) {
	t.Parallel()
	answers := []string{`{"changed":1000,"skipped":2,"left":500,"next":"c1"}`, `{"changed":0,"skipped":0,"left":480,"next":"c2"}`, `{"changed":480,"skipped":0,"left":0,"next":""}`}
	url, cursors := deedServer(t, answers...)
	out, err := doAll(t, url, "table")
	if want := "1480 deleted, 2 not there\n"; out != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if got := strings.Join(*cursors, ","); got != ",c1,c2" {
		t.Errorf("cursors: got %q, want each step's", got)
	}
	url, _ = deedServer(t, answers...)
	if out, err := doAll(t, url, "json"); out != `{"changed":1480,"skipped":2,"left":0,"next":""}`+"\n" || err != nil {
		t.Errorf("-o json: got %q, %v", out, err)
	}
}

// Redis goes away in the middle: what was done is told, and where to go on.
func TestDeedBrokenOff(t *testing.T) {
	t.Parallel()
	url, _ := deedServer(t, `{"changed":1000,"skipped":0,"left":500,"next":"c1"}`, `{"title":"Service Unavailable","detail":"redis is away","changed":70,"next":"c2"}`)
	_, err := doAll(t, url, "table")
	if want := "redis is away; 1070 were deleted before, go on with --cursor c2"; err == nil || err.Error() != want || codeOf(err) != exitUnreachable {
		t.Errorf("got %v (code %d), want %s", err, codeOf(err), want)
	}
	url, _ = deedServer(t, `{"title":"Service Unavailable","detail":"redis is away"}`)
	if _, err := doAll(t, url, "table"); err == nil || err.Error() != "redis is away" {
		t.Errorf("at once: got %v", err)
	}
}

func TestDeedInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := brokenOff(ctx, progress{Changed: 3, Next: "c9"}, deed{done: "requeued"}, context.Canceled)
	if want := "interrupted; 3 were requeued before, go on with --cursor c9"; err.Error() != want || codeOf(err) != exitInterrupted {
		t.Errorf("got %v (code %d), want %s", err, codeOf(err), want)
	}
}
