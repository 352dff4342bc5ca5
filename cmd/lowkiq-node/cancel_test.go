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

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/web"
)

// TestCancelOfAnyID checks that a cancel asks for each id as given, in one queue or in all. It refuses an invalid id
// before it asks a node. The refusals of all queues are one answer, which keeps the results of the queues where the id
// may run.
func TestCancelOfAnyID(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"queues":[{"name":"mails"},{"name":"orders"},{"name":"visits"}]}`)
			return
		}
		asked = append(asked, r.URL.EscapedPath())
		detail := `"x": not running`
		switch {
		case strings.Contains(r.URL.Path, "/orders/jobs/hangs/"):
			detail = `"hangs", which n1/1.1 has: no answer`
		case strings.Contains(r.URL.Path, "/jobs/hangs/"):
			detail = `"hangs": not running`
		case strings.Contains(r.URL.Path, "/jobs/x/"):
		default:
			fmt.Fprint(w, `{}`)
			return
		}
		w.WriteHeader(http.StatusConflict)
		json.NewEncoder(w).Encode(web.Problem{Title: "Conflict", Status: http.StatusConflict, Detail: detail}) //nolint:errcheck // a test
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		args []string
		code int
		says string
		path string // of the last request; "": none was sent
	}{
		{[]string{"..", "--queue", "orders"}, exit.OK, `orders: the handler of ".." is told to stop; then it is due again`, "/api/v1/queues/orders/jobs/%2E%2E/cancel"},
		{[]string{".", "--queue", "orders"}, exit.OK, `"."`, "/api/v1/queues/orders/jobs/%2E/cancel"},
		{[]string{"a/b", "--queue", "orders"}, exit.OK, `"a/b"`, "/api/v1/queues/orders/jobs/a%2Fb/cancel"},
		{[]string{"", "--queue", "orders"}, exit.Usage, `<key> is empty; it must have a value`, ""},
		{[]string{strings.Repeat("x", 1<<20), "--queue", "orders"}, exit.Usage, `has 1048576 bytes; an id must have 1 to 512`, ""},
		{[]string{"x", "--queue", "orders"}, exit.Failed, `orders: "x": not running`, "/api/v1/queues/orders/jobs/x/cancel"},
		{[]string{"x"}, exit.Failed, `lowkiq-node: "x": not running in any queue (mails, orders, visits)`, "/api/v1/queues/visits/jobs/x/cancel"},
		{[]string{"hangs"}, exit.Failed, `lowkiq-node: orders: "hangs", which n1/1.1 has: no answer` + "\n", "/api/v1/queues/visits/jobs/hangs/cancel"},
	} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		asked = nil
		code := execute(append([]string{"cancel", "--node", server.URL}, c.args...), &terminal.Streams{In: os.Stdin, Out: out, Err: out})
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		if len(asked) > 0 {
			last = asked[len(asked)-1]
		}
		if code != c.code || !strings.Contains(string(text), c.says) || last != c.path {
			t.Errorf("cancel %.40q: got exit code %d, %.200q and a request of %q, want %d, %q and %q", c.args, code, text, last, c.code, c.says, c.path)
		}
		out.Close()
	}
}

// TestDrainSaysWhatBecameOfIt checks that a drain fails if the node did not hear it, and that the error names the
// remaining shards.
func TestDrainSaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, answer string
		code         int
		want         string
	}{
		{"drain n2", `{"draining":true,"instance":"n2/A.1","node":"n2","noticed":true,"shards":0}`, exit.OK, "node n2 has given its shards away\n"},
		{"drain n2", `{"draining":true,"instance":"n2/A.1","node":"n2","noticed":true,"shards":3}`, exit.OK, "still owns 3 shards: batches in flight end first"},
		{"drain n2", `{"draining":true,"instance":"n2/A.1","node":"n2","noticed":false,"shards":3}`, exit.Failed, "node n2 (n2/A.1) got the request, and its lease does not say that it heard it: it still owns 3 shards"},
		{"drain n2 -o json", `{"draining":true,"instance":"n2/A.1","node":"n2","noticed":false,"shards":3}`, exit.Failed, `"noticed":false`},
		{"drain --undo n2", `{"draining":false,"instance":"n2/A.1","node":"n2","noticed":true,"shards":3}`, exit.OK, "node n2 takes shards again\n"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(c.answer)) })) //nolint:errcheck // a test
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		code := execute(append(strings.Fields(c.args), "--node", server.URL), &terminal.Streams{In: os.Stdin, Out: out, Err: out})
		text, err := os.ReadFile(out.Name())
		if err = errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		server.Close()
		if code != c.code || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: got exit code %d and %q, want %d and %q", c.args, code, text, c.code, c.want)
		}
	}
}

// TestDotsAsNames checks that a command asks for the names "." and "..", which servers would resolve in a path.
func TestDotsAsNames(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"queues show ..": "/api/v1/queues/%2E%2E", "workflows show .": "/api/v1/workflows/%2E", "recurring show ..": "/api/v1/recurring/%2E%2E",
		"drain ..": "/api/v1/nodes/%2E%2E/drain",
	} {
		asked := ""
		runAgainst(t, nil, func(w http.ResponseWriter, r *http.Request) { asked = r.URL.EscapedPath() }, strings.Fields(args)...)
		if asked != want {
			t.Errorf("%s: got a request of %q, want %q", args, asked, want)
		}
	}
}
