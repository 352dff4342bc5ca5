//go:build unix

package main

import (
	"context"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestMain is also the main of the lowkiq-migrate that scripts run.
func TestMain(m *testing.M) { clitest.Main(m, map[string]func(){program: main}) }

// TestScripts runs the stories of testdata. Each has a Redis of its own (LOWKIQ_REDIS).
//
//	exits N command…         it ends with this exit code
//	redis COMMAND…           to the story's Redis, past lowkiq; the answer is stdout
//	push ID PAYLOAD DELAY    into the queue orders, which has 4 shards
func TestScripts(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			redis := redistest.Start(t)
			env.Setenv("REDIS", redis.Addr())
			env.Setenv("LOWKIQ_REDIS", redis.URL())
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or every command ends a second late
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits, "redis": clitest.Redis, "push": pushed},
	})
}

func pushed(ts *testscript.TestScript, _ bool, args []string) {
	client, err := protocol.Open(protocol.Config{Redis: ts.Getenv("LOWKIQ_REDIS")})
	ts.Check(err)
	defer client.Close()
	q, err := client.Register(context.Background(), lowkiq.Queue{Name: "orders", Shards: 4})
	ts.Check(err)
	delay, err := time.ParseDuration(args[2])
	ts.Check(err)
	push := lowkiq.Push{ID: args[0], Payload: []byte(args[1])}
	if delay > 0 {
		push.PerformAt = time.Now().Add(delay)
	}
	_, err = q.Push(context.Background(), push)
	ts.Check(err)
}

func parser(options ...kong.Option) (*kong.Kong, error) {
	return newParser(&command{}, &terminal.Streams{}, options...)
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	clitest.CheckCommands(t, program, 5, func(arguments []string) error {
		return clitest.Parse(append(arguments, "--from=redis://old"), parser) // pages keep the address of the old Redis in LOWKIQ_FROM
	})
}

func TestCLIPage(t *testing.T) {
	t.Parallel()
	k, err := parser()
	if err != nil {
		t.Fatal(err)
	}
	const written = "A test writes this page: `LOWKIQ_GOLDEN_WRITE=1 go test ./cmd/lowkiq-migrate -run TestCLIPage`."
	golden.File(t, "../../docs/cli-migrate.md", manual.MarkdownPage(manual.ReadGrammar(k.Model, exitHelp), exitHelp, written))
}
