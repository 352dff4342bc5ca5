//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/node/handler"
)

// TestMain is also the main of the lowkiq-node that scripts run.
func TestMain(m *testing.M) {
	handler.Guard()
	if os.Getenv(underHangs) != "" {
		hang()
	}
	clitest.Main(m, map[string]func(){"lowkiq-node": main})
}

// TestScripts runs the stories of testdata. Each has a Redis of its own (LOWKIQ_REDIS)
// and a free address ($HTTP, and LOWKIQ_URL). $CERTS has ca.pem and, signed by it,
// server and client, each .pem and .key.
//
//	exits N command…           it ends with this exit code
//	await REGEXP command…      it is repeated until it succeeds and its stdout matches
//	awaitfile FILE REGEXP      until the file's content matches
//	signal TERM|TTIN           to the background commands
//	redis COMMAND…             to the story's Redis, past lowkiq; the answer is stdout
func TestScripts(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("client")
	stories, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(stories) == 0 {
		t.Fatalf("got stories %q, %v", stories, err)
	}
	testscript.Run(t, testscript.Params{
		Files: tier.Of([]string{"testdata/completion.txtar", "testdata/config.txtar", "testdata/help.txtar"}, stories, stories),
		Setup: func(env *testscript.Env) error {
			redis := redistest.Start(t)
			address := redistest.Addresses(t, 1)[0]
			env.Setenv("CERTS", filepath.Dir(ca.File))
			env.Setenv("REDIS", redis.Addr())
			env.Setenv("LOWKIQ_REDIS", redis.URL())
			env.Setenv("HTTP", address)
			env.Setenv("LOWKIQ_URL", "http://"+address)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or every command ends a second late
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TMPDIR", filepath.Join(env.WorkDir, ".tmp"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "await": await, "awaitfile": awaitFile, "signal": sendSignal, "redis": clitest.Redis,
		},
	})
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	if !clitest.Eventually(func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout"))
	}) {
		ts.Fatalf("%q: want stdout to match %s", args[1:], pattern)
	}
}

func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[1])
	if !clitest.Eventually(func() bool {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && pattern.Match(text)
	}) {
		ts.Fatalf("file %s: want it to match %s", args[0], pattern)
	}
}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	sig := map[string]os.Signal{"TERM": syscall.SIGTERM, "TTIN": syscall.SIGTTIN}[args[0]]
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(sig))
	}
}
