//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// A node that very many ask at once for what is large stays within its memory, whatever they ask: each request is answered,
// or told to try again.
func TestReadFloods(t *testing.T) {
	tier.All(t)
	const askers = 200
	r := newRig(t, 4)
	addresses := redistest.Addresses(t, 3)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: python3 is not on PATH, so no handler answered; install python3 to run it")
	}
	script := r.t.TempDir() + "/answer.py"
	if err := os.WriteFile(script, []byte(largeAnswers), 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.run("lowkiq-node", nil, built.Path(t, ".."), "run", "--insecure", "--config", r.config("{exec: ["+python+", "+script+"]}"),
		"--bind", addresses[0], "--http", addresses[2])
	queue := "http://" + addresses[2] + "/api/v1/queues/" + queueName + "/"
	r.await("the node lives", patience, func() bool { return ask(t.Context(), http.MethodGet, queue+"jobs", "", nil) == nil })
	r.leased(p, 1)
	if err := ask(t.Context(), http.MethodPost, queue+"holds", "", []byte(`{"id":"large"}`)); err != nil {
		t.Fatal(err)
	}
	r.await("the hold is in force", patience, func() bool { // jobs that are pushed before are handled
		if err := ask(t.Context(), http.MethodPost, queue+"jobs", "", []byte(`{"id":"large","payload":"first"}`)); err != nil {
			t.Fatal(err)
		}
		held, err := browse.Of(r.queue).Page(t.Context(), browse.Query{State: browse.StateHeld})
		return err == nil && len(held.Jobs) > 0
	})
	for i := range 15 {
		body := fmt.Appendf(nil, `{"id":"large","payload":"%d%s"}`, i, strings.Repeat("x", 1<<20-100))
		if err := ask(t.Context(), http.MethodPost, queue+"jobs", "", body); err != nil {
			t.Fatal(err)
		}
	}
	var failing strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&failing, "{\"id\":\"fails-%d\",\"payload\":\"%s\"}\n", i, strings.Repeat("y", 4000))
	}
	if err := ask(t.Context(), http.MethodPost, queue+"jobs", "", []byte(failing.String())); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		hold := fmt.Appendf(nil, `{"prefix":"held-%d-%s","why":%q}`, i, strings.Repeat("h", 200), strings.Repeat("w", 400))
		if err := ask(t.Context(), http.MethodPost, queue+"holds", "", hold); err != nil {
			t.Fatal(err)
		}
	}
	recurring := "http://" + addresses[2] + "/api/v1/recurring"
	for i := range 63 {
		entry := fmt.Appendf(nil, `{"every":"24h","queue":%q,"payload":"%s"}`, queueName, strings.Repeat("r", 64<<10-100))
		if err := ask(t.Context(), http.MethodPost, fmt.Sprintf("%s/r%d", recurring, i), "", entry); err != nil {
			t.Fatal(err)
		}
	}
	page := "http://" + addresses[2] + "/queues/" + queueName + "/"
	for _, path := range []string{
		page + "job?id=large", queue + "jobs/large", queue + "jobs?limit=1000", queue + "jobs?state=failed&by=retries&limit=1000", queue + "errors", queue + "journal?limit=1000",
		queue + "jobs/large/history", queue + "tags", page + "errors", page + "jobs?limit=200",
		"http://" + addresses[2] + "/api/v1/why?queue=" + queueName + "&id=large", "http://" + addresses[2] + "/api/v1/shards", "http://" + addresses[2] + "/api/v1/changes?limit=1000",
		queue + "holds", queue + "rules", page + "rules", recurring, recurring + "/r7", recurring + "/r7/next", "http://" + addresses[2] + "/recurring", "http://" + addresses[2] + "/recurring/r7",
	} {
		if status, err := get(t.Context(), path); status != http.StatusOK || err != nil {
			t.Errorf("%s, alone: got %d, %v", path, status, err)
		}
		before, ok, busy := memoryOf(t, p.pid(), "VmRSS"), 0, 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for range askers {
			all.Go(func() {
				status, err := get(t.Context(), path)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && status == http.StatusOK:
					ok++
				case err == nil && status == http.StatusServiceUnavailable:
					busy++
				default:
					t.Errorf("%s: got %d, %v", path, status, err)
				}
			})
		}
		all.Wait()
		most := memoryOf(t, p.pid(), "VmHWM")
		t.Logf("%s: %d answered, %d told to try again; %d MiB before, %d MiB at most so far", path, ok, busy, before, most)
		if most-before > floodBudget {
			t.Errorf("%s: got %d MiB more in memory, want %d MiB at most", path, most-before, floodBudget)
		}
	}
	var calls strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&calls, "{\"id\":\"call-%d\"}\n", i)
	}
	before := memoryOf(t, p.pid(), "VmRSS")
	answer, err := http.Post(queue+"jobs?wait=5m", "application/json", strings.NewReader(calls.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	given, kept := strings.Count(string(text), `"result":"zzz`), strings.Count(string(text), `"result_kept":true`)
	most := memoryOf(t, p.pid(), "VmHWM")
	t.Logf("calls: %d results, %d kept; %d MiB before, %d MiB at most", given, kept, before, most)
	if given == 0 || given+kept != 1000 {
		t.Errorf("got %d results and %d kept of 1000 calls: %.300s", given, kept, text)
	}
	if most-before > floodBudget {
		t.Errorf("calls: got %d MiB more in memory, want %d at most", most-before, floodBudget)
	}
	p.terminate(patience)
}

// largeAnswers is a handler that fails what is to fail, and answers calls with 250 KB.
const largeAnswers = `import json, sys
for line in sys.stdin:
    batch = json.loads(line)
    failed, answers = {}, {}
    for job in batch["jobs"]:
        if job["id"].startswith("fails"):
            failed[job["id"]] = "no stock " + "e" * 3000
        else:
            answers[job["id"]] = {"result": "z" * 250000}
    print(json.dumps({"failed": failed, "answers": answers}), flush=True)
`

// get asks for a page and drops it.
func get(ctx context.Context, url string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}
