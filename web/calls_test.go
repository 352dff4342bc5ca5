package web

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// worker handles the jobs of a queue with one shard in a test.
type worker struct {
	t     testing.TB
	claim *protocol.Claim
}

func (w *world) worker(name string) *worker {
	w.t.Helper()
	q, err := w.client.Register(w.t.Context(), lowkiq.Queue{Name: name, Shards: 1})
	must(w.t, err)
	claim, err := q.Shard(0).Claim(w.t.Context(), "n1/01J.1", protocol.Fresh, protocol.Owner{})
	must(w.t, err)
	return &worker{w.t, claim}
}

// pop waits for jobs.
func (w *worker) pop() protocol.Popped {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		popped, err := w.claim.Pop(w.t.Context(), protocol.PopRequest{IDs: 10, Bytes: 1 << 20})
		must(w.t, err)
		if len(popped.Jobs) > 0 {
			return popped
		}
	}
	w.t.Fatal("not within a minute: a job")
	return protocol.Popped{}
}

// A push with wait answers how its payloads have ended; results of any bytes come back.
func TestPushThatWaits(t *testing.T) {
	w := newWorld(t, shared(t))
	work := w.worker("quotes")
	answers := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		answers <- w.do("POST", "/api/v1/queues/quotes/jobs?wait=1m", `[{"id":"json"},{"id":"bytes"},{"id":"none"},{"id":"bad"},{"id":"long","payload":"`+strings.Repeat("x", lowkiq.MaxPayloadBytes)+`"}]`)
	}()
	popped := work.pop()
	if len(popped.Jobs) != 4 {
		t.Fatalf("got %d jobs, want 4", len(popped.Jobs))
	}
	acks := protocol.Acks{Flight: popped.Flight, IDs: []string{"json", "bytes", "none"}}
	for id, result := range map[string][]byte{"json": []byte(`{"a":"<&>"}`), "bytes": {0xff, 0}, "none": nil} {
		acks.Answers = append(acks.Answers, protocol.Answer{ID: id, Callers: 1, Result: result})
	}
	_, err := work.claim.Ack(t.Context(), acks)
	must(t, err)
	_, err = work.claim.Bury(t.Context(), protocol.Burial{Flight: popped.Flight, ID: "bad", Policy: protocol.Bury, Error: "no such thing"})
	must(t, err)
	answer := <-answers
	expect(t, answer, 200, `{"id":"json","ok":true,"merged":false,"state":"done","result":{"a":"<&>"},"token":"`,
		`{"id":"bytes","ok":true,"merged":false,"state":"done","result":{"$base64":"/wA="},"token":"`,
		`{"id":"none","ok":true,"merged":false,"state":"done","token":"`,
		`{"id":"bad","ok":true,"merged":false,"error":"no such thing","state":"buried","token":"`,
		`{"id":"long","ok":false,"merged":false,"error":"job \"long\": payload is too large`)
	_, rest, _ := strings.Cut(answer.Body.String(), `"result":{"a":"<&>"},"token":"`)
	token, _, _ := strings.Cut(rest, `"`)
	expect(t, w.do("GET", "/api/v1/queues/quotes/replies/json/"+token, ""), 200, `{"id":"json","state":"done","result":{"a":"<&>"}}`)
	expect(t, w.do("GET", "/api/v1/queues/quotes/replies/%2E%2E/AAAAAAAAAAAAAAAAAAAAAA", ""), 404, `job \"..\": no reply`)
	expect(t, w.do("GET", "/api/v1/queues/quotes/replies/bytes/"+token, ""), 200) // one shard: the token is what counts
}

// A note is shown while its handler has the job; what is overtaken is refused.
func TestNotes(t *testing.T) {
	w := newWorld(t, shared(t))
	work := w.worker("files")
	q, err := w.client.Queue(t.Context(), "files")
	must(t, err)
	_, err = q.Push(t.Context(), job("a/b"))
	must(t, err)
	popped := work.pop()
	const path = "/api/v1/queues/files/jobs/a%2Fb/note"
	note := func(fence, flight int64, body string) *httptest.ResponseRecorder {
		return w.do("POST", path, body, "Lowkiq-Fence", fmt.Sprint(fence), "Lowkiq-Flight", fmt.Sprint(flight))
	}
	expect(t, note(work.claim.Fence, popped.Flight, `{"progress":0.5,"log":"page <12>"}`), 200, `{"id":"a/b","noted":true}`)
	expect(t, w.do("GET", "/api/v1/queues/files/in-flight", ""), 200, `"progress":{"share":0.5,"log":"page \u003c12\u003e","at":`)
	expect(t, w.do("GET", "/api/v1/queues/files/jobs/a%2Fb", ""), 200, `"progress":{"share":0.5,`)
	expect(t, note(work.claim.Fence, popped.Flight, `{"log":"page 13"}`), 200)
	expect(t, w.do("GET", "/api/v1/queues/files/in-flight", ""), 200, `"progress":{"share":0.5,"log":"page 13","at":`)
	expect(t, note(work.claim.Fence, popped.Flight, `{"progress":0.75}`), 200)
	expect(t, w.do("GET", "/api/v1/queues/files/in-flight", ""), 200, `"progress":{"share":0.75,"log":"page 13","at":`)
	expect(t, w.do("POST", path, `{}`, "Lowkiq-Fence", ""), 400, `"field":"Lowkiq-Fence"`)
	expect(t, note(work.claim.Fence-1, popped.Flight, `{"progress":0.5}`), 409, "fenced")
	expect(t, note(work.claim.Fence, popped.Flight+1, `{"progress":0.5}`), 409, "not in flight")
	expect(t, note(work.claim.Fence, popped.Flight, `{"progress":2}`), 400, "progress is 2, want 0 to 1")
	expect(t, note(work.claim.Fence, popped.Flight, `{"state":1}`), 400, `"field":"state"`)
	_, err = work.claim.Ack(t.Context(), protocol.Acks{Flight: popped.Flight, Rest: true})
	must(t, err)
	expect(t, note(work.claim.Fence, popped.Flight, `{"progress":0.5}`), 409)
}

// What an endpoint has noted is not shown of the id's next job, and takes no room for ever: the node that
// handles the job may not know of notes that came to another.
func TestNotesEnd(t *testing.T) {
	w := newWorld(t, shared(t))
	work := w.worker("files")
	q, err := w.client.Queue(t.Context(), "files")
	must(t, err)
	db := w.client.DB().ForTests()
	kept := func() int64 { return db.HLen(t.Context(), q.Of("f0").Keys().Progress).Val() }
	const rounds = 20
	for i := range rounds {
		for _, id := range []string{"again", fmt.Sprint("f", i)} {
			_, err = q.Push(t.Context(), job(id))
			must(t, err)
		}
		popped := work.pop()
		expect(t, w.do("GET", "/api/v1/queues/files/jobs/again", ""), 200, `"state":"in_flight"`)
		for path, show := range map[string]string{"/in-flight": "of an earlier flight is listed", "/jobs/again": "of an earlier flight is shown"} {
			if got := w.do("GET", "/api/v1/queues/files"+path, "").Body.String(); strings.Contains(got, `"progress":`) {
				t.Errorf("what was noted %s: %s", show, got)
			}
		}
		for _, done := range popped.Jobs {
			if done.ID == "again" && i%2 == 1 {
				continue
			}
			answer := w.do("POST", "/api/v1/queues/files/jobs/"+done.ID+"/note", `{"progress":0.5}`,
				"Lowkiq-Fence", fmt.Sprint(work.claim.Fence), "Lowkiq-Flight", fmt.Sprint(popped.Flight))
			expect(t, answer, 200, `"noted":true`)
		}
		if n := kept(); n > 2 {
			t.Errorf("round %d: notes about %d jobs are kept, want no more than 2 are in flight", i, n)
		}
		_, err = work.claim.Ack(t.Context(), protocol.Acks{Flight: popped.Flight, Rest: true})
		must(t, err)
	}
}
