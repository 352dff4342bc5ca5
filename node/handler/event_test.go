package handler

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

func event() *lowkiq.Event {
	return &lowkiq.Event{Kind: lowkiq.Recovered, Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Recovered: 12, From: "n2/1"}
}

const eventText = `{"event":{"kind":"recovered","queue":"orders","shard":3,"recovered":12,"crashes":0,"from":"n2/1"}}`

func TestHTTPEvent(t *testing.T) {
	t.Parallel()
	status, said := 200, ""
	var body, kind string
	h := endpoint(t, HTTPConfig{Token: "sesame"}, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body, kind = string(text), r.Header.Get("Lowkiq-Event")+" "+r.Header.Get("Lowkiq-Queue")+" "+r.Header.Get("Authorization")
		w.WriteHeader(status)
		io.WriteString(w, said) //nolint:errcheck // the test would see
	})
	for _, c := range []struct {
		status     int
		said, want string
	}{{200, "", ""}, {204, "", ""}, {200, `{"ok":true}`, ""}, {200, `{"ok":false,"error":"no"}`, "no"}, {500, "boom", "boom"}, {200, `{"failed":{"a":"x"}}`, "not in the batch"}} {
		status, said = c.status, c.said
		err := h.Event(t.Context(), event())
		if body != eventText || kind != "recovered orders Bearer sesame" || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: posted %s with %q, got %v", c, body, kind, err)
		}
	}
}

func TestExecEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`printf '%s\n' "$line" >>lines; case $line in *n2/1*) echo '{"ok":true}';; *) echo '{"ok":false,"error":"no"}';; esac`), Dir: dir})
	if err := e.Event(t.Context(), event()); err != nil {
		t.Errorf("got %v, want it to be taken", err)
	}
	other := event()
	other.From = "n3/1"
	if err := e.Event(t.Context(), other); err == nil || err.Error() != "no" {
		t.Errorf("got %v, want no", err)
	}
	lines, err := os.ReadFile(filepath.Join(dir, "lines"))
	if first, _, _ := strings.Cut(string(lines), "\n"); err != nil || first != eventText {
		t.Errorf("it read %s, %v; want %s", first, err, eventText)
	}
}
