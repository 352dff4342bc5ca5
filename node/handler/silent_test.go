//go:build linux

package handler

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// silent neither accepts nor refuses connections, like a host that is gone. Its backlog is full.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
	for range 100 { // until the backlog is full
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("NOT TESTED HERE: this system takes connections beyond a backlog of 0")
	return ""
}

// A host that does not answer has no batch. No retry is counted, and it costs only a few seconds of
// the handler's time.
func TestHTTPSilentHost(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	address := silent(t)
	for name, timeout := range map[string]time.Duration{"shorter timeout": 100 * time.Millisecond, "longer timeout": time.Hour, "none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "shorter timeout" {
				t.Skip("it waits for 5 s; run without -short")
			}
			h, err := NewHTTP(HTTPConfig{URL: "http://" + address + "/", Timeout: timeout, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var got lowkiq.Postpone
			if err := h.Handle(ctx, batch()); !errors.As(err, &got) || ctx.Err() != nil {
				t.Errorf("got %v, want to be postponed", err)
			}
			// A handler that is told to stop has no outage.
			ctx, cancel = context.WithTimeoutCause(t.Context(), 50*time.Millisecond, lowkiq.ErrTimeout)
			defer cancel()
			if err := h.Handle(ctx, batch()); errors.As(err, &got) || !errors.Is(err, lowkiq.ErrTimeout) {
				t.Errorf("got %v, want %v", err, lowkiq.ErrTimeout)
			}
		})
	}
}
