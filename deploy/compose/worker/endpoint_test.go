package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/node/handler"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What a node posts is done, and stands in the history as it was pushed.
func TestNodePosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history")
	writer, err := judge.OpenAs(file, "sample")
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	server := httptest.NewServer(&endpoint{work: time.Millisecond, history: writer})
	defer server.Close()
	node, err := handler.NewHTTP(handler.HTTPConfig{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	payload := lowkiq.Payload{Score: 1.5, Data: []byte(`{"commit":"1f2e","time":17}`)}
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "history", Index: 3}, Fence: 9, Flight: 1,
		Jobs: []lowkiq.Job{{ID: "a/b.go", RetryCount: -1, Payloads: []lowkiq.Payload{payload}}}}
	if err := node.Handle(t.Context(), batch); err != nil {
		t.Fatalf("got %v, want the batch done", err)
	}
	pushed := judge.PushedOf("history", lowkiq.Push{ID: "a/b.go", Score: &payload.Score, Payload: payload.Data}, 0)
	verdict, err := judge.Check(judge.Config{}, func(yield func(judge.Pushed) bool) { yield(pushed) }, file)
	if err != nil || !verdict.OK() {
		t.Errorf("got %v, %s", err, verdict.Words())
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestNoBatch(t *testing.T) {
	for _, body := range []string{"", "nonsense", "{}", `{"queue":"a","jobs":[]}`} {
		w := httptest.NewRecorder()
		(&endpoint{}).ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%q: got status %d, want 400", body, w.Code)
		}
	}
}
