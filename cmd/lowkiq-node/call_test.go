package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
)

// The id of a reply that is asked for arrives as it is, whatever bytes it has.
func TestSegment(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /replies/{id}/{token}", func(_ http.ResponseWriter, r *http.Request) { got <- r.PathValue("id") })
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, id := range []string{"a", "a/b", ".", "..", "...", "../x", "a//b", `a"b'?#&%2F%`, "a\x00\n ", "\xff\xfe", "é"} {
		answer, err := server.Client().Get(server.URL + "/replies/" + escapeSegment(id) + "/token")
		if err != nil {
			t.Errorf("%q: %v", id, err)
			continue
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%q: got status %d", id, answer.StatusCode)
			continue
		}
		if name := <-got; name != id {
			t.Errorf("%q: the server got %q", id, name)
		}
	}
}

// An id that is not UTF-8 is refused before anything is done, and not taken for another.
func TestArgumentsOfOtherBytes(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"push", "--queue", "orders", "--id", "\xff"}, {"reply", "orders", "\xff\xfe", "token"}, {"jobs", "kill", "orders", "a", "b\xff"},
	} {
		said, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		code := execute(args, &terminal.Streams{In: os.Stdin, Out: said, Err: said})
		text, err := os.ReadFile(said.Name())
		if err != nil {
			t.Fatal(err)
		}
		errs := string(text)
		said.Close()
		if code != exit.Usage || !strings.Contains(errs, `\xff`) || !strings.Contains(errs, "is not UTF-8") {
			t.Errorf("%q: got exit code %d and %q, want %d and the argument named", args, code, errs, exit.Usage)
		}
	}
}
