package compose

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/demodata"
	"github.com/lowkiq/lowkiq/lab/judge"
)

const (
	shards = 16
	// patience is for what has no promised bound on a busy machine.
	patience = 90 * time.Second
	// takeover is I4's bound at the default ttl of 6 s, 2 ttl + 3 s, and how long it may
	// take a busy machine to ask.
	takeover = 15*time.Second + 15*time.Second
)

// The sample deployment under scaling, a killed and a cut off container: every event is
// handled, in order, and no file twice at once.
func TestDeployment(t *testing.T) {
	tier.All(t)
	s := newStack(t)
	s.up(2, "redis", "worker", "node", "feeder")
	first := s.containers("node")[0]
	s.await("two nodes share the shards", first, patience, shared(2, shards))
	s.published(first)

	s.up(5, "node")
	s.await("five nodes share them", first, patience, shared(5, shards))
	s.up(3, "node")
	nodes := s.containers("node")
	first = nodes[0]
	s.await("three nodes share them", first, patience, shared(3, shards))

	killed := nodes[1]
	s.docker("kill", killed)
	s.await("two go on without the killed one", first, takeover, shared(2, shards))
	s.docker("start", killed)
	s.await("the killed one is back", first, patience, shared(3, shards))

	s.cutOff(first, nodes[2])
	s.settled(first)
	s.judge()
}

// published looks at the API from the host: a request without a token learns nothing but that the
// node is ready.
func (s *stack) published(node string) {
	s.t.Helper()
	address, _, _ := strings.Cut(s.docker("port", node, "7948/tcp"), "\n")
	known, err := os.ReadFile(filepath.Join(s.secrets, "node", "ca.crt"))
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(known)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	get := func(path string) (*http.Response, error) {
		answer, err := client.Get("https://" + address + path)
		if err == nil {
			answer.Body.Close()
		}
		return answer, err
	}
	for deadline := time.Now().Add(patience); ; <-time.After(200 * time.Millisecond) {
		answer, err := get("/readyz")
		if err == nil {
			if answer.StatusCode == http.StatusOK {
				break
			}
			err = errors.New(answer.Status)
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("readyz on the published port %s: got %v, want 200", address, err)
		}
	}
	if answer, err := get("/api/v1/status"); err != nil || answer.StatusCode != http.StatusUnauthorized {
		s.t.Errorf("status without a token: got %v, %v, want 401", answer, err)
	}
}

// cutOff takes the network from a node and gives it back.
func (s *stack) cutOff(first, node string) {
	s.t.Helper()
	network := s.project + "_default"
	address := s.docker("inspect", "-f", `{{(index .NetworkSettings.Networks "`+network+`").IPAddress}}`, node)
	s.docker("network", "disconnect", network, node)
	s.await("two go on without the one that was cut off", first, takeover, shared(2, shards))
	s.docker("network", "connect", "--ip", address, "--alias", "node", network, node)
	s.await("the one that was cut off is back", first, patience, shared(3, shards))
	if restarts := s.docker("inspect", "-f", "{{.RestartCount}}", node); restarts != "0" {
		s.t.Errorf("the node that was cut off restarted %s times, want it to live on", restarts)
	}
}

// settled waits until the stream is pushed and handled.
func (s *stack) settled(first string) {
	s.t.Helper()
	feeder := s.docker("ps", "-aq", "--filter", "label=com.docker.compose.project="+s.project, "--filter", "label=com.docker.compose.service=feeder")
	if code := s.docker("wait", feeder); code != "0" {
		s.t.Errorf("the feeder ended with %s, want 0", code)
	}
	if said := s.docker("logs", feeder); !strings.Contains(said, `{"pushed":12805,`) {
		s.t.Errorf("the feeder said %q, want all events pushed", said)
	}
	s.await("everything is handled", first, patience, func(st status) bool { return len(st.Queues) > 0 && st.waiting() == 0 })
}

// judge reads the worker's history.
func (s *stack) judge() {
	s.t.Helper()
	file := s.file(s.containers("worker")[0], "/history")
	var pushed []judge.Pushed
	for e := range demodata.Events() {
		pushed = append(pushed, judge.PushedOf("history", lowkiq.Push{ID: e.ID, Score: &e.Score, Payload: e.Payload}, 0))
	}
	// What was in flight on a node that died or was cut off is handled again.
	verdict, err := judge.Check(judge.Config{MaxDuplicates: -1, MaxUncaused: -1}, slices.Values(pushed), file)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%s", verdict.Words())
	if !verdict.OK() {
		s.t.Error("promises were broken")
	}
	if verdict.Distinct != demodata.Count {
		s.t.Errorf("got %d events handled, want %d", verdict.Distinct, demodata.Count)
	}
}
