//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// floodBudget is the memory, in MiB, that a node may take for a flood. node.request_memory is 64 MiB. Gossip
// streams have 16 MiB, up to four times while they grow. Go's collector lets as much again be garbage. The
// rest is for connections, and for a collector that is late because the flood itself has the processors.
const floodBudget = 2*(64+4*16) + 150

// A node that is flooded at all its ports, by those who have its token and those who have nothing,
// stays within its memory and says that it lives. What it refuses it may be asked again.
func TestFlood(t *testing.T) {
	tier.All(t)
	const token = "flood-token-0123456789"
	flooded := map[string][]string{"with a token": {"LOWKIQ_NODE_TOKEN=" + token}}
	if tier.IsAll() {
		flooded["without a token"] = nil
	}
	for name, env := range flooded {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 4)
			addresses := redistest.Addresses(t, 3)
			bind, api := addresses[0], addresses[2]
			key := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))), 0o600); err != nil {
				t.Fatal(err)
			}
			env := append(env, "LOWKIQ_NODE_GOSSIP_KEY_FILE="+key)
			p := r.run("lowkiq-node", env, built.Path(t, ".."), "run", "--config", r.config("{exec: [cat]}"), "--bind", bind, "--http", api)
			url := "http://" + api
			healthy := func(within time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				return ask(ctx, http.MethodGet, url+"/healthz", "", nil)
			}
			r.await("the node lives", patience, func() bool { return healthy(time.Second) == nil })
			r.leased(p, 1)
			before := memoryOf(t, p.pid(), "VmRSS")

			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			var attackers sync.WaitGroup
			repeat := func(n int, attack func()) {
				for range n {
					attackers.Go(func() {
						for ctx.Err() == nil {
							attack()
						}
					})
				}
			}
			body := fmt.Appendf(nil, `{"id":"a","payload":%q}`, bytes.Repeat([]byte("x"), 30<<20))
			repeat(8, func() { _ = ask(ctx, http.MethodPost, url+"/api/v1/queues/"+queueName+"/jobs", token, body) })
			repeat(4, func() { _ = ask(ctx, http.MethodPost, url+"/api/v1/queues/"+queueName+"/jobs", "", body) })
			unfinished := fmt.Sprintf("POST /api/v1/queues/%s/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", queueName)
			repeat(200, func() { occupy(ctx, api, []byte(unfinished)) })
			stream := append(binary.BigEndian.AppendUint32(labelled(r.cluster, gossipSealed), 20<<20), make([]byte, 19<<20)...)
			repeat(60, func() { occupy(ctx, bind, stream) })
			repeat(100, func() { occupy(ctx, nextPort(bind), []byte{4, 0}) })

			slowest := time.Duration(0)
			for ctx.Err() == nil {
				began := time.Now()
				if err := healthy(time.Second + slack); err != nil && ctx.Err() == nil {
					t.Errorf("health: got %v", err)
					break
				}
				slowest = max(slowest, time.Since(began))
			}
			cancel()
			attackers.Wait()
			most := memoryOf(t, p.pid(), "VmHWM")
			t.Logf("%d MiB before, %d MiB at most, health in %s at most", before, most, slowest.Round(time.Millisecond))
			if most-before > floodBudget {
				t.Errorf("got %d MiB more in memory, want %d at most", most-before, floodBudget)
			}
			if !p.running() {
				t.Error("the node has ended")
			}
			p.terminate(patience)
		})
	}
}

// ask sends a request and drops the answer.
func ask(ctx context.Context, method, url, token string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Close = true
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("got %s", answer.Status)
	}
	return nil
}

// occupy opens a connection, sends what it has to say, and keeps it until the other end closes it.
func occupy(ctx context.Context, address string, begin []byte) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := conn.Write(begin); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// memoryOf is a figure of a process's memory, MiB.
func memoryOf(t *testing.T, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatalf("no %s in the status of process %d", field, pid)
	return 0
}
