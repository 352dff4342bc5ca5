package node

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/node/handler"
)

// TestEndpointIsDown: jobs of an endpoint that refuses connections wait; none has failed, so that no
// retry is spent.
func TestEndpointIsDown(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	h, err := handler.NewHTTP(handler.HTTPConfig{URL: "http://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, h.Handle)
	run.serving()
	p := open(t, srv.URL(), 1)
	p.push(numbered("a", 0, 1)...)
	await(t, "the job is put off, not failed", func() bool {
		s := p.stats()
		if s.Failed != 0 {
			t.Fatalf("got %+v, want no failure", s)
		}
		return s.Jobs.Scheduled == 1
	})
}
