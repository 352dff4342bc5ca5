//go:build linux

package browser

import (
	"encoding/json"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// endpoint handles the jobs: an id that begins with "slow" is held until the test ends,
// one that begins with "bad" fails, the others succeed.
type endpoint struct {
	server  *httptest.Server
	release chan struct{}
	letGo   func() // ends what is slow
}

// failures are of several kinds, and one tries to be markup.
var failures = []string{
	"dial tcp 10.0.0.17:5432: connect: connection refused",
	"invalid amount 42.50 in field \"total\"\nat line 17\nat line 3",
	"<script>alert('error')</script> & \"quotes\"",
	"timeout after 30s: the payment provider did not answer; its status page says that everything is fine, which it evidently is not, " +
		"so somebody should be told about it in a sentence that is much too long for a narrow table",
}

func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{release: make(chan struct{})}
	e.server = httptest.NewServer(e)
	e.letGo = sync.OnceFunc(func() { close(e.release) })
	t.Cleanup(func() { e.letGo(); e.server.Close() })
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var batch struct{ Jobs []struct{ ID string } }
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	failed := map[string]string{}
	for _, job := range batch.Jobs {
		switch {
		case strings.HasPrefix(job.ID, "slow"):
			select {
			case <-e.release:
			case <-r.Context().Done():
			}
		case strings.HasPrefix(job.ID, "bad"):
			failed[job.ID] = failures[int(crc32.ChecksumIEEE([]byte(job.ID)))%len(failures)]
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"failed": failed}) // the node may be gone
}
