package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/web"
)

// A push that the node refuses is not to be repeated as it is; one that may pass is.
func TestPushAdvice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		id     string
		status int
		detail string
		code   int
		want   string
	}{
		{"read token", "a", 403, "POST with the read token; this needs the push or the admin token", exit.Usage, "nothing was pushed: POST with the read token; this needs the push or the admin token"},
		{"wrong token", "a", 401, "the token is not one of this node's", exit.Usage, "nothing was pushed: the token is not one of this node's"},
		{"read token, lines", "", 403, "POST with the read token", exit.Usage, "POST with the read token; once that is mended, resume with --skip 3"},
		{"away", "a", 503, "redis is away", exit.Unreachable, "redis is away; push it again: that is safe"},
		{"away, lines", "", 503, "redis is away", exit.Unreachable, "redis is away; resume with --skip 3"},
	} {
		command := pushCommand{ID: c.id}
		err := command.explainEnd(t.Context(), feed.Summary{Line: 3}, fmt.Errorf("%w", &web.Problem{Status: c.status, Detail: c.detail}))
		if err == nil || err.Error() != c.want || exitCode(err) != c.code {
			t.Errorf("%s: got %v with code %d, want %q with %d", c.name, err, exitCode(err), c.want, c.code)
		}
		if strings.Contains(c.name, "token") && strings.Contains(err.Error(), "safe") {
			t.Errorf("%s: got %v, want no advice to repeat it", c.name, err)
		}
	}
}
