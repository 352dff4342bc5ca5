package web

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/wire"
)

// Bodies in memory are bounded in total: who comes when it is used up is told to try again, and
// nothing of his is stored; once it is free again he is served.
func TestRequestMemory(t *testing.T) {
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.RequestMemory = 1 << 20 })
	w.fill()
	var arrived atomic.Int64 // bytes of bodies
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{readerFunc(func(p []byte) (int, error) {
			n, err := body.Read(p)
			arrived.Add(int64(n))
			return n, err
		}), body}
		w.handler.ServeHTTP(out, r)
	}))
	t.Cleanup(s.Close)
	push := func(body io.Reader) (*http.Response, error) {
		return s.Client().Post(s.URL+"/api/v1/queues/mail/jobs", "application/json", body)
	}
	long := fmt.Sprintf(`{"id":"a","payload":%q}`, strings.Repeat("x", 300<<10)) // twice that is counted
	begun, rest := io.Pipe()
	first := make(chan error, 1)
	go func() {
		answer, err := push(begun)
		if err == nil {
			first <- answerIs(answer, http.StatusOK)
			return
		}
		first <- err
	}()
	_, err := io.WriteString(rest, long[:len(long)-1])
	must(t, err)
	deadline := time.Now().Add(time.Minute)
	for arrived.Load() < int64(len(long))-1 { // else the second body might be there first
		if time.Now().After(deadline) {
			t.Fatal("the first body never arrived")
		}
		time.Sleep(time.Millisecond)
	}
	for {
		answer, err := push(strings.NewReader(strings.Replace(long, `"a"`, `"b"`, 1)))
		must(t, err)
		if answer.StatusCode == http.StatusServiceUnavailable {
			if answer.Header.Get("Retry-After") == "" {
				t.Error("got no Retry-After")
			}
			body, err := io.ReadAll(answer.Body)
			must(t, err)
			must(t, answer.Body.Close())
			if !strings.Contains(string(body), "node.request_memory") {
				t.Errorf("got %s, want it to name the bound", body)
			}
			break
		}
		must(t, answer.Body.Close())
		if time.Now().After(deadline) {
			t.Fatal("a second body was always taken, want 503 while the first one is in memory")
		}
	}
	// Small ones fit beside it, and so does health.
	answer, err := push(strings.NewReader(`{"id":"c"}`))
	must(t, err)
	must(t, answerIs(answer, http.StatusOK))
	_, err = io.WriteString(rest, "}")
	must(t, err)
	must(t, rest.Close())
	must(t, <-first)
	for {
		answer, err := push(strings.NewReader(long))
		must(t, err)
		if answerIs(answer, http.StatusOK) == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("got 503 after the first body was gone")
		}
	}
}

// Headers take memory that a body does not show: small objects, and the trace that each job gets.
func TestHeadersMemory(t *testing.T) { // alone: it looks at all memory
	for name, c := range map[string]struct {
		body string
		jobs int
	}{
		"an object each": {`{"id":"a","header":{"a":""}}`, 20_000},
		"traced":         {`{"id":"a"}`, 20_000},
		"many names":     {`{"id":"a","header":{` + manyNames(400) + `}}`, 200},
		"long":           {`{"id":"a","header":{"a":"` + strings.Repeat("v", 4000) + `"}}`, 1000},
	} {
		body := []byte(strings.Repeat(c.body+"\n", c.jobs))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		jobs, err := wire.ParseJobs(body)
		must(t, err)
		addTrace(jobs, map[string]string{"traceparent": strings.Repeat("v", 55), "tracestate": strings.Repeat("v", 500)})
		stored := envelope.All(jobs)
		runtime.GC()
		runtime.ReadMemStats(&after)
		took, counted := int64(after.HeapAlloc)-int64(before.HeapAlloc), copiesOfBody*int64(len(body))+jobsMemory(body)+headersMemory(jobs)
		if took > counted {
			t.Errorf("%s: %d jobs take %d bytes, %d are counted", name, len(stored), took, counted)
		}
		t.Logf("%s: %.2f of what is counted", name, float64(took)/float64(counted))
		runtime.KeepAlive(jobs)
		runtime.KeepAlive(stored)
	}
}

func manyNames(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(`"%03d":""`, i)
	}
	return strings.Join(names, ",")
}

func answerIs(answer *http.Response, want int) error {
	text, err := io.ReadAll(answer.Body)
	if err == nil {
		err = answer.Body.Close()
	}
	if err == nil && answer.StatusCode != want {
		err = fmt.Errorf("got %s, want %d: %s", answer.Status, want, text)
	}
	return err
}
