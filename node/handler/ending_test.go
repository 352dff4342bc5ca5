//go:build linux

package handler

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// The log tells a child that the node has killed, and why, from a child that was killed by somebody else.
func TestExecLogsWhyItKills(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		cancel error
		want   string // "" if the node has not killed it
	}{
		"an answer that is none": {`echo nonsense`, nil, "instead of an answer"},
		"two answers":            {`printf '{"ok":true}\n{"ok":true}\n'`, nil, "wrote more than one answer to its batch"},
		"cancelled":              {`sleep 600`, errors.New("handler timeout: 3s"), "handler timeout: 3s"},
		"killed by another":      {`kill -9 $$`, nil, ""},
		"exited":                 {`exit 3`, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log wholeLog
			e := running(t, ExecConfig{Argv: loop(`echo working >&2; ` + c.script), Log: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.cancel != nil {
				go func() {
					eventually(t, "the batch's begin", func() bool { return strings.Contains(log.String(), "line=working") })
					cancel(c.cancel)
				}()
			}
			_ = e.Handle(ctx, batch()) // it may fail or not
			var line string
			eventually(t, "a line about the end", func() bool {
				_, rest, found := strings.Cut(log.String(), `msg="handler process ended"`)
				line, _, _ = strings.Cut(rest, "\n")
				return found
			})
			own := strings.Contains(line, " by=node why=")
			if own != (c.want != "") || !strings.Contains(line, c.want) || !strings.Contains(line, " pid=") || strings.Contains(line, " pid=0 ") {
				t.Errorf("got %q, want it to have a pid, and that the node has killed it if %q is why", line, c.want)
			}
		})
	}
}
