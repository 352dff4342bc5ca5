package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
)

// TestNoTextSpeaksToTheTerminal checks that no command prints an escape sequence, whatever a node answers.
func TestNoTextSpeaksToTheTerminal(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[31m\u009b2J\u202ey"
	bad, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	everything := strings.ReplaceAll(`{"cluster":EVIL,"leader":EVIL,"warnings":[EVIL],"generation":{"record":EVIL,"index":1},
		"nodes":[{"name":EVIL,"instance":EVIL,"state":EVIL,"http":EVIL}],
		"queues":[{"name":EVIL,"causes":[{"kind":EVIL,"reason":EVIL}]}],"id":EVIL,"queue":EVIL,"state":EVIL,"reason":EVIL,"jobs":[{"id":EVIL,"state":EVIL,"error":EVIL}],
		"groups":[{"kind":EVIL}],"servers":[{"address":EVIL,"version":EVIL}],"moves":[{"queue":EVIL,"from":EVIL,"to":EVIL,"reason":EVIL}],
		"by_worker":{EVIL:{}},"changed":1,"next":EVIL}`, "EVIL", string(bad))
	list := strings.ReplaceAll(`[{"node":EVIL,"instance":EVIL,"state":EVIL,"address":EVIL,"queue":EVIL,"owner":EVIL,"assigned":EVIL}]`, "EVIL", string(bad))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := everything
		if strings.HasSuffix(r.URL.Path, "/members") || strings.HasSuffix(r.URL.Path, "/shards") {
			answer = list
		}
		if strings.HasSuffix(r.URL.Path, "/queues/orders") {
			answer = strings.ReplaceAll(`{"name":EVIL,"causes":[{"kind":EVIL,"reason":EVIL,"command":EVIL}]}`, "EVIL", string(bad))
		}
		if strings.HasSuffix(r.URL.Path, "/pause") {
			w.WriteHeader(http.StatusBadRequest)
			answer = fmt.Sprintf(`{"title":"Bad Request","detail":%s}`, bad)
		}
		w.Write([]byte(answer)) //nolint:errcheck // a test
	}))
	t.Cleanup(server.Close)
	for _, args := range []string{"status", "members", "shards", "plan", "why 17", "why 17 --queue orders", "why --queue orders", "queues",
		"queues pause orders", "jobs orders", "morgue orders",
		"in-flight orders", "errors orders", "stats", "redis"} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		execute(append(strings.Fields(args), "--node", server.URL), &terminal.Streams{In: os.Stdin, Out: out, Err: out})
		text, err := os.ReadFile(out.Name())
		if err = errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "x\\x1b[31m") {
			t.Errorf("%s: got %q, want the text, made plain", args, text)
		}
		for _, r := range string(text) {
			if r == 0x1b || r == 0x9b || r == 0x202e {
				t.Errorf("%s: got %q, which has %U", args, text, r)
				break
			}
		}
	}
}
