package handler

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// TestOutagePauses: a batch is tried again after 1, 1, 2, 4 … 30 s of an outage; the next outage starts anew.
func TestOutagePauses(t *testing.T) {
	t.Parallel()
	var o outage
	now := time.Now()
	for range 2 {
		for _, want := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
			var got lowkiq.Postpone
			if err := o.postpone(slog.New(slog.DiscardHandler), "x", errors.New("gone"), now); !errors.As(err, &got) || got.After != want*time.Second {
				t.Errorf("got %v, want %ds", err, want)
			}
			now = now.Add(got.After)
		}
		o.over()
	}
}

func TestOutageWarnings(t *testing.T) {
	t.Parallel()
	var o outage
	var text bytes.Buffer
	log, now := slog.New(slog.NewTextHandler(&text, nil)), time.Now()
	for _, at := range []time.Duration{0, 1, 2, time.Second} {
		_ = o.postpone(log, "http://x/", errors.New("gone"), now.Add(at))
	}
	if got := text.String(); strings.Count(got, "level=WARN") != 2 || strings.Count(got, "handler=http://x/") != 2 || !strings.Contains(got, "left_out=2") {
		t.Errorf("got %s, want two warnings of http://x/, the second of which counts two that were left out", got)
	}
}

// TestHTTPUnreachable: who cannot be reached has no batch, so that no retry is spent.
func TestHTTPUnreachable(t *testing.T) {
	t.Parallel()
	for url, shown := range map[string]string{
		"http://secret:secret@127.0.0.1:1/a?key=secret": "post http://127.0.0.1:1/a: dial tcp", // a port that no other test can be given
		"http://secret:secret@no.such.host.invalid/":    "post http://no.such.host.invalid/: dial tcp: lookup",
	} {
		var text bytes.Buffer
		h, err := NewHTTP(HTTPConfig{URL: url, Log: slog.New(slog.NewTextHandler(&text, nil))})
		if err != nil {
			t.Fatal(err)
		}
		var got lowkiq.Postpone
		if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After != time.Second || !strings.HasPrefix(got.Reason, shown) {
			t.Errorf("%s: got %v, want to be postponed by 1s, the address and the reason once", url, err)
		}
		if log := text.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, h.url) || strings.Contains(log, "secret") {
			t.Errorf("got %s, want a warning that names %s without secrets", log, h.url)
		}
	}
}
