package handler

import (
	"io"
	"net/http"
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
