//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// proxies are the programs whose configurations docs/reverse-proxy.md shows, with what a whole configuration has around
// them, and the arguments after which the program runs in the foreground.
var proxies = []struct {
	program, around string
	args            []string
}{
	{"nginx", `daemon off; pid DIR/pid; error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
	server { listen ADDRESS; PAGE }
}
`, []string{"-c"}},
	{"caddy", "{\n\tadmin off\n\tauto_https off\n}\nPAGE", []string{"run", "--adapter", "caddyfile", "--config"}},
	{"haproxy", "defaults\n\tmode http\n\ttimeout connect 5s\n\ttimeout client 1m\n\ttimeout server 1m\nPAGE", []string{"-db", "-f"}},
}

// TestProxies checks that the API and the dashboard work below a prefix, behind each installed proxy.
func TestProxies(t *testing.T) {
	tier.All(t)
	t.Parallel()
	page := clitest.Documents(t)["reverse-proxy.md"]
	for _, proxy := range proxies {
		t.Run(proxy.program, func(t *testing.T) {
			t.Parallel()
			binary, err := exec.LookPath(proxy.program)
			if err != nil {
				t.Skipf("SKIPPED: %s is not on PATH, so its configuration in docs/reverse-proxy.md was NOT tried; apt-get install %[1]s to try it", proxy.program)
			}
			blocks := clitest.Blocks(page, proxy.program)
			if len(blocks) != 1 {
				t.Fatalf("got %d configurations, want one", len(blocks))
			}
			w := walk(t, "queues:\n  orders: {shards: 4, handler: {exec: [cat], processes: 1}}\n")
			address, dir := redistest.Addresses(t, 1)[0], t.TempDir()
			user := ""
			if os.Getuid() == 0 {
				user = "user root;\n" // the workers of nginx could not enter the directory of the test
			}
			text := strings.NewReplacer("PAGE", blocks[0], "DIR", dir, "ADDRESS", address).Replace(proxy.around)
			text = strings.NewReplacer("127.0.0.1:7948", w.http, "ops.example.com", "http://"+address, "bind :80", "bind "+address).Replace(text)
			if proxy.program == "nginx" {
				text = user + text
			}
			file := filepath.Join(dir, "configuration")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			command := exec.Command(binary, append(proxy.args, file)...)
			command.Env = append(w.env, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
			var log strings.Builder
			command.Stdout, command.Stderr = &log, &log
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = command.Process.Signal(syscall.SIGTERM)
				_ = command.Wait()
				if t.Failed() {
					t.Logf("%s says:\n%s", proxy.program, log.String())
				}
			})
			tryProxy(t, "http://"+address)
			w.end()
		})
	}
}

func tryProxy(t *testing.T, base string) {
	ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, path, body, origin string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			request.Header.Set("Origin", origin)
		}
		return client.Do(request)
	}
	text := func(method, path, body, origin string) (int, string) {
		t.Helper()
		response, err := send(method, path, body, origin)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		all, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(all)
	}
	if !clitest.Eventually(func() bool {
		response, err := send(http.MethodGet, "/jobs/healthz", "", "")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	}) {
		t.Fatal("the node does not answer through the proxy")
	}
	// The client follows the redirect to /jobs/.
	if code, page := text(http.MethodGet, "/jobs", "", ""); code != http.StatusOK || !strings.Contains(page, "<title>Overview") {
		t.Errorf("got %d for /jobs, want the overview: %.300s", code, page)
	}
	payload := strings.Repeat("x", 700_000)
	jobs := fmt.Sprintf(`[{"id":"a","payload":"%[1]s"},{"id":"b","payload":"%[1]s"},{"id":"c","payload":"%[1]s"}]`, payload)
	const pause = "/jobs/api/v1/queues/orders/pause"
	if code, answer := text(http.MethodPost, pause, "", "http://elsewhere.example.com"); code != http.StatusForbidden {
		t.Errorf("got %d for a change from another site, want 403: %s", code, answer)
	}
	if code, answer := text(http.MethodPost, pause, "", base); code != http.StatusOK {
		t.Errorf("got %d for a change, want 200: %s", code, answer)
	}
	if code, answer := text(http.MethodPost, "/jobs/api/v1/queues/orders/jobs", jobs, ""); code != http.StatusOK {
		t.Errorf("got %d for a push of 2 MiB, want 200: %s", code, answer)
	}
	stream, err := send(http.MethodGet, "/jobs/events?of=%2F", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if line, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "event: ") {
		t.Errorf("got %q, %v from the stream, want an event while it is open", line, err)
	}
}
