//go:build unix

package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// patience is long enough for each step on a busy machine.
const patience = 2 * time.Minute

var built nodebin.Binary

func TestMain(m *testing.M) {
	code := leaktest.Run(m)
	_ = built.Remove()
	os.Exit(code)
}

// language is a client with its tests.
type language struct {
	program  string   // interpreter
	tests    []string // arguments that run all tests
	worker   string   // a handler for the tests, as a child process
	endpoint string   // the same handler over HTTP; it prints its port
	visits   string   // the handler of the pages
	env      []string
}

func TestPython(t *testing.T) {
	language{
		program: "python3", tests: []string{"-m", "unittest", "discover", "-v", "-s", "tests"},
		worker: "tests/worker.py", endpoint: "tests/endpoint.py", visits: "../../examples/python/counter.py",
		env: []string{"PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1"},
	}.test(t, "python")
}

func TestNode(t *testing.T) {
	language{
		program: "node", tests: []string{"--test", "test/client.test.js", "test/handler.test.js"},
		worker: "test/worker.js", endpoint: "test/endpoint.js", visits: "test/visits.js",
	}.test(t, "node")
}

func TestRuby(t *testing.T) {
	language{
		program: "ruby", tests: []string{"-Ilib", "test/all.rb", "-v"},
		worker: "test/worker.rb", endpoint: "test/endpoint.rb", visits: "test/visits.rb",
	}.test(t, "ruby")
}

// test runs the tests in a language against a node. Its queues have the handler of the tests.
func (l language) test(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	tier.Usual(t)
	program := clitest.Program(t, l.program, "the test of clients/"+name)
	dir, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "node.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := &world{t: t, dir: dir, address: redistest.Addresses(t, 3), log: file}
	w.servers()
	env := nodebin.Env(append(l.env, "LOWKIQ_URL="+w.proxy.URL, "LOWKIQ_TOKEN="+adminToken, "LOWKIQ_TEST_CONTROL="+w.control.URL,
		"LOWKIQ_TEST_TLS_URL="+w.secure.URL, "LOWKIQ_TEST_CA="+w.authority.File, "ENDPOINT_TOKEN="+endpointToken)...)
	w.configure(program, l, w.startEndpoint(program, l.endpoint, env))
	w.env = nodebin.Env(append(l.env, "LOWKIQ_NODE_TOKEN="+adminToken, "LOWKIQ_NODE_TTL=1m")...)
	if !w.start() {
		t.FailNow()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	tests := exec.CommandContext(ctx, program, l.tests...)
	tests.Dir, tests.Env = dir, env
	out, err := tests.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("SKIPPED")) {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(l.tests, " "), err, out)
	}
	w.stop(syscall.SIGTERM)
	for _, stray := range []string{"a stray print", "a stray write", "a stray child"} {
		if text := read(w.t, w.log.Name()); !strings.Contains(text, `"line":"`+stray+`"`) {
			t.Errorf("the node's log lacks %q, which the worker prints:\n%s", stray, text)
		}
	}
}

const (
	adminToken    = "admin-token-0123456789"
	endpointToken = "endpoint secret"
)

// world is a node on a Redis of its own. Clients reach it by a proxy, so that answers can be lost.
type world struct {
	t         *testing.T
	dir       string
	address   []string // of HTTP, gossip and Raft
	config    string
	env       []string
	authority *certtest.Authority

	proxy, secure, control *httptest.Server
	losing                 atomic.Bool // the answer to the next push is lost

	mu    sync.Mutex // guards node
	node  *exec.Cmd
	ended chan error
	log   *os.File // of the node
}

// servers starts the proxies and the server by which tests control the node.
func (w *world) servers() {
	w.t.Helper()
	reverse := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.address[0]})
	reverse.Transport = &http.Transport{DisableKeepAlives: true}
	reverse.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, _ error) { cut(rw) } // as a node that is away
	forward := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && w.losing.CompareAndSwap(true, false) {
			reverse.ServeHTTP(httptest.NewRecorder(), r)
			cut(rw)
			return
		}
		reverse.ServeHTTP(rw, r)
	})
	w.authority = certtest.New(w.t)
	certificate, err := tls.LoadX509KeyPair(w.authority.Server("proxy"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.proxy, w.secure = httptest.NewServer(forward), httptest.NewUnstartedServer(forward)
	w.secure.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	w.secure.Config.ErrorLog = log.New(io.Discard, "", 0) // clients without the authority break off
	w.secure.StartTLS()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /lose", func(http.ResponseWriter, *http.Request) { w.losing.Store(true) })
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { w.stop(syscall.SIGKILL) })
	mux.HandleFunc("POST /start", func(rw http.ResponseWriter, _ *http.Request) {
		if !w.start() {
			rw.WriteHeader(http.StatusInternalServerError)
		}
	})
	w.control = httptest.NewServer(mux)
	w.t.Cleanup(func() {
		for _, s := range []*httptest.Server{w.control, w.proxy, w.secure} {
			s.CloseClientConnections()
			s.Close()
		}
	})
}

// cut closes a connection without an answer.
func cut(rw http.ResponseWriter) {
	if hijacker, ok := rw.(http.Hijacker); ok {
		if connection, _, err := hijacker.Hijack(); err == nil {
			connection.Close()
		}
	}
}

// startEndpoint starts the server of the handler and returns its port.
func (w *world) startEndpoint(program, script string, env []string) (port string) {
	w.t.Helper()
	server := exec.Command(program, script)
	server.Dir, server.Env = w.dir, env
	server.Stderr = io.Discard
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() { // the handler prints, too
		if port, ok := strings.CutPrefix(lines.Text(), "port "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return port
		}
	}
	w.t.Fatalf("%s %s ends without its port: %v", program, script, lines.Err())
	return ""
}

// queues are three queues: of a child process, of a child process with batches, and of an endpoint.
const queues = `redis: %[1]s
queues:
  orders: {%[2]s, handler: %[3]s}
  batches: {%[2]s, batch_size: 20, handler: %[3]s}
  visits: {%[2]s, handler: %[5]s}
  posted: {%[2]s, handler: {http: %[4]q}}
`

const rules = `shards: 4, state: 1h, max_retry_count: 0, exhausted: bury, journal: all, groups: {by: ":", concurrency: 100}`

// configure writes the node's configuration.
func (w *world) configure(program string, l language, port string) {
	w.t.Helper()
	host := net.JoinHostPort("127.0.0.1", port)
	posted := url.URL{Scheme: "http", Host: host, Path: "/", User: url.UserPassword("lowkiq", endpointToken)}
	child := fmt.Sprintf("{exec: [%q, %q], processes: 1}", program, filepath.Join(w.dir, l.worker))
	visits := fmt.Sprintf("{exec: [%q, %q], processes: 1}", program, filepath.Join(w.dir, l.visits))
	text := fmt.Sprintf(queues, redistest.Start(w.t).URL(), rules, child, posted.String(), visits)
	w.config = filepath.Join(w.t.TempDir(), "node.yaml")
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// start starts the node. It reports whether the node handles its shards.
func (w *world) start() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	flags := []string{"run", "--config", w.config, "--name", "n1", "--http", w.address[0], "--bind", w.address[1]}
	node := exec.Command(built.Path(w.t, ".."), flags...)
	node.Env, node.Stderr, node.Dir = w.env, w.log, w.dir
	if err := node.Start(); err != nil {
		w.t.Error(err)
		return false
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	w.t.Cleanup(func() { _ = node.Process.Kill() })
	w.node, w.ended = node, ended
	if !clitest.Eventually(func() bool { return len(ended) > 0 || clitest.Get(w.address[0], "/readyz") != "" }) || len(ended) > 0 {
		w.t.Errorf("the node does not get ready:\n%s", read(w.t, w.log.Name()))
		return false
	}
	return true
}

// stop ends the node.
func (w *world) stop(signal os.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.node != nil {
		_ = w.node.Process.Signal(signal)
		<-w.ended
		w.node = nil
	}
}

var fenced = regexp.MustCompile("(?ms)^```(python|ruby|js)\n(.*?)^```$")

// TestPagesShowTestedCode checks that the client code on pages is in a test or in an example that a test runs.
func TestPagesShowTestedCode(t *testing.T) {
	t.Parallel()
	sources := map[string]string{"python": "python/*s/*.py ../examples/python/*.py", "ruby": "ruby/*/*.rb", "js": "node/*/*.js"}
	tested := map[string]string{}
	for name, patterns := range sources {
		for _, pattern := range strings.Fields(patterns) {
			for _, file := range glob(t, pattern) {
				tested[name] += flush(read(t, file))
			}
		}
	}
	seen := map[string]int{}
	for _, page := range append(glob(t, "*/README.md"), "../docs/recipes.md", "../docs/handlers.md") {
		for _, block := range fenced.FindAllStringSubmatch(read(t, page), -1) {
			if seen[block[1]]++; !strings.Contains(tested[block[1]], flush(block[2])) {
				t.Errorf("%s shows code that is in no test:\n%s", page, block[2])
			}
		}
	}
	for name := range sources {
		if seen[name] < 5 {
			t.Errorf("got %d blocks of %s, want at least 5: the test looks in the wrong place", seen[name], name)
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: got %d files, %v", pattern, len(files), err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// flush is code without the white space at the beginning of its lines.
func flush(code string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(code, "")
}
