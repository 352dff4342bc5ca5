//go:build linux

package handler

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// wholeLog is a log that is read while it is written.
type wholeLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *wholeLog) Write(entry []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(entry)
}

func (l *wholeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// If a child answers nothing to its first batch, people are told once, with the usual reason.
func TestExecSaysThatAChildIsSilent(t *testing.T) {
	t.Parallel()
	var log wholeLog
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`while [ ! -e go ]; do sleep 0.01; done; echo '{"ok":true}'`), Dir: dir, Processes: 2, Log: slog.New(slog.NewTextHandler(&log, nil))},
		func(e *Exec) { e.silence = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan error, 2)
	for range 2 {
		go func() { answers <- e.Handle(ctx, batch()) }()
	}
	eventually(t, "the warning", func() bool { return strings.Contains(log.String(), "handler process has written nothing") })
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := e.Handle(ctx, batch()); err != nil {
		t.Error(err)
	}
	if got := log.String(); strings.Count(got, "has written nothing") != 1 || !strings.Contains(got, "has not flushed stdout (Python: print(..., flush=True))") {
		t.Errorf("got log %s, want one warning that names the flush", got)
	}
}
