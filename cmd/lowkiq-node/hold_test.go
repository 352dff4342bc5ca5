package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
)

// holdsOf runs a command against a node that knows two queues and answers what is posted as post does.
func holdsOf(t *testing.T, post func(w http.ResponseWriter, queue string), args ...string) (code int, text string, posted int) {
	t.Helper()
	code, out, errs := runAgainst(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"queues":[{"name":"mails"},{"name":"orders"}]}`)
			return
		}
		posted++
		post(w, strings.Split(r.URL.Path, "/")[4])
	}, args...)
	return code, out + errs, posted
}

// runAgainst runs a command against a node that answers so. It returns its exit code and what it printed, but for what goes
// to out, unless that is nil.
func runAgainst(t *testing.T, out *os.File, node http.HandlerFunc, args ...string) (code int, printed, errs string) {
	t.Helper()
	server := httptest.NewServer(node)
	defer server.Close()
	file := func(name string) *os.File {
		f, err := os.CreateTemp(t.TempDir(), name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	read := func(f *os.File) string {
		f.Close()
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ours, err := file("out"), file("err")
	code = execute(append(args, "--node", server.URL), &terminal.Streams{In: os.Stdin, Out: cmp.Or(out, ours), Err: err})
	return code, read(ours), read(err)
}

// TestHoldOfNothing checks that hold refuses an empty id or prefix, such as an unset variable, before it asks a node.
// It does not list the holds instead.
func TestHoldOfNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"hold", ""}, `key "" has 0 bytes; an id must have 1 to 512`},
		{[]string{"hold", "", "--undo"}, `key "" has 0 bytes`},
		{[]string{"hold", "--prefix", ""}, `--prefix "": give the beginning of ids, as in --prefix acme:`},
		{[]string{"hold", "--prefix", "", "--queue", "orders", "--for", "1h"}, `--prefix ""`},
		{[]string{"hold", "", "--prefix", ""}, "not both"},
		{[]string{"hold", "--undo"}, "give an id, or --prefix PREFIX"},
	} {
		code, text, posted := holdsOf(t, func(http.ResponseWriter, string) {}, c.args...)
		if code != exit.Usage || !strings.Contains(text, c.says) || posted != 0 {
			t.Errorf("%q: got exit code %d, %q and %d requests, want %d, %q and none", c.args, code, text, posted, exit.Usage, c.says)
		}
	}
}

// TestUndoOfHolds checks that the command does not call an id free while another hold covers it. To undo a hold that
// does not exist fails, in one queue or in all.
func TestUndoOfHolds(t *testing.T) {
	t.Parallel()
	const undone, still, not = `{"undone":true,"held":false}`, `{"undone":true,"held":true,"held_by_prefix":"acme:"}`, `{"undone":false,"held":false}`
	const beside = `{"undone":false,"held":true,"held_by_prefix":"acme:"}`
	for _, c := range []struct {
		mails, orders string
		args          []string
		code          int
		says          string
	}{
		{not, undone, []string{"acme:7"}, exit.OK, "orders: \"acme:7\" is held no longer: what waits of it runs\n"},
		{not, still, []string{"acme:7"}, exit.OK, "orders: the hold of \"acme:7\" is undone; it is still held, by the prefix \"acme:\"\n"},
		{not, beside, []string{"acme:7"}, exit.Failed, "lowkiq-node: orders: \"acme:7\" was not held by itself; it is still held, by the prefix \"acme:\"\n"},
		{not, not, []string{"--prefix", "acme"}, exit.Failed, "lowkiq-node: prefix \"acme\" was not held in any queue (mails, orders)\n"},
		{not, not, []string{"--prefix", "acme", "--queue", "orders"}, exit.Failed, "lowkiq-node: orders: prefix \"acme\" was not held\n"},
		{undone, undone, []string{"--prefix", "acme:"}, exit.OK, "mails: prefix \"acme:\" is held no longer: what waits of it runs\norders: prefix \"acme:\" is held no longer: what waits of it runs\n"},
		{not, undone, []string{"acme:7", "-o", "json"}, exit.OK, not + "\n" + undone + "\n"},
	} {
		code, text, _ := holdsOf(t, func(w http.ResponseWriter, queue string) {
			fmt.Fprintln(w, map[string]string{"mails": c.mails, "orders": c.orders}[queue])
		}, append([]string{"hold", "--undo"}, c.args...)...)
		if code != c.code || text != c.says {
			t.Errorf("%q: got exit code %d and %q, want %d and %q", c.args, code, text, c.code, c.says)
		}
	}
}
