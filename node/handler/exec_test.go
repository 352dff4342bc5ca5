//go:build linux

package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// sh is a child in shell. Its script finds the batch that was read last in $line.
func sh(script string) []string { return []string{"sh", "-c", script} }

// loop is a child that runs script for every batch.
func loop(script string) []string {
	return sh("while IFS= read -r line; do " + script + "; done")
}

// running runs an Exec until the test ends. The options change it before.
func running(t testing.TB, cfg ExecConfig, options ...func(*Exec)) *Exec {
	t.Helper()
	cfg.Processes = max(cfg.Processes, 1)
	e, err := NewExec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range options {
		option(e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: got %v, want nil", err)
		}
	})
	return e
}

func TestExecAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want string }{
		"ok":        {`{"ok":true}`, ""},
		"refused":   {`{"ok":false,"error":"no luck"}`, "no luck"},
		"failed id": {`{"failed":{"a":"gone"}}`, "a: gone"},
		"limited":   {`{"ok":false,"retry_after":30,"limit":"acme:"}`, "acme: limited for 30s"},
		"long":      {`{"ok":false,"error":"` + strings.Repeat("x", 100_000) + `"}`, strings.Repeat("x", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := running(t, ExecConfig{Argv: append(loop(`printf '%s\n' "$ANSWER"; n=$((n+1))`), "child"), Env: []string{"ANSWER=" + c.answer}})
			for range 3 { // the same child goes on after a failure
				err := e.Handle(t.Context(), batch())
				if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
					t.Errorf("got %.200v, want %.200q", err, c.want)
				}
			}
		})
	}
}

func TestExecChildSeesTheBatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`printf '%s\n' "$line" >>batches; echo '{"ok":true}'`), Dir: dir})
	want := strings.Repeat("x", 300_000) // far beyond a pipe's buffer
	for i := range 2 {
		b := batch()
		b.Flight = int64(i)
		b.Jobs[0].Payloads[0].Data = fmt.Appendf(nil, "%q", want)
		if err := e.Handle(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "batches"))
	got := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if err != nil || len(got) != 2 {
		t.Fatalf("got %d lines, %v, want 2", len(got), err)
	}
	for i, line := range got {
		if d := decode(t, line); d.Flight != int64(i) || string(d.Jobs[0].Payloads[0].Payload) != `"`+want+`"` {
			t.Errorf("got flight %d, want %d with the payload", d.Flight, i)
		}
	}
}

func TestExecMisbehaviour(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv []string
		want string
	}{
		"exits":           {loop(`echo oh dear >&2; exit 3`), "ended before it answered: exit status 3; stderr: oh dear"},
		"killed":          {loop(`kill -9 $$`), "ended before it answered: killed by SIGKILL"},
		"half an answer":  {loop(`printf '{"ok"'; exit 1`), "ended before it answered: exit status 1"},
		"nonsense":        {loop(`echo debug; echo '{"ok":true}'`), `wrote "debug" to stdout instead of an answer`},
		"too long":        {loop(`head -c 1703937 /dev/zero | tr '\0' x; echo`), "longer than 1703936 bytes"},
		"closes stdout":   {loop(`exec >/dev/null`), "closed its stdout before it answered"},
		"exits at once":   {sh(`exit 4`), "exit status 4"},
		"speaks first":    {sh(`echo ready; sleep 60`), `"ready" to stdout`},
		"does not read":   {sh(`exec <&-; echo '{"ok":true}'; sleep 60`), "batch"},
		"closes stdin":    {sh(`exec <&-; sleep 60`), "closed its stdin"},
		"unknown answer":  {loop(`echo '{"done":1}'`), `unknown field "done"`},
		"grandchild left": {loop(`sleep 60 & exit 5`), "ended before it answered: exit status 5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := running(t, ExecConfig{Argv: c.argv})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			b := batch()
			if name == "does not read" || name == "closes stdin" { // a batch that fits into no pipe
				b.Jobs[0].Payloads[0].Data = bytes.Repeat([]byte{' ', 'x'}, 200_000)
			}
			if err := e.Handle(ctx, b); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A child that answers twice, late, early or with garbage acknowledges no batch that it has not read
// (I2). Each of these children records the flights that it has read before it answers to them.
func TestExecAnswersCountForWhatWasRead(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	const read = `IFS= read -r line || exit; f=${line#*flight\":}; f=${f%%,*}; echo "$f" >>read; `
	const ok = `echo '{"ok":true}'; `
	for name, c := range map[string]struct{ script, want string }{
		"twice":           {read + ok + ok, ""},
		"late":            {read + ok + `sleep 1; ` + ok, "before it had read its batch"},
		"early":           {ok + read, "to stdout"},
		"late garbage":    {read + ok + `sleep 1; echo bye; `, "before it had read its batch"},
		"another's":       {read + `echo "{\"ok\":true,\"flight\":${last:-$f}}"; last=$f; `, "this answers another batch"},
		"does not read":   {`sleep 1; ` + ok + `sleep 600; `, "before it had read its batch"},
		"stops listening": {`exec <&-; sleep 600; `, "closed its stdin without reading its batch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			e := running(t, ExecConfig{Argv: sh("while :; do " + c.script + "done"), Dir: dir})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var complaints strings.Builder
			for flight := range int64(4) {
				b := batch()
				b.Flight = flight
				if err := e.Handle(ctx, b); err != nil {
					fmt.Fprintln(&complaints, err)
					continue
				}
				text, _ := os.ReadFile(filepath.Join(dir, "read"))
				if !slices.Contains(strings.Fields(string(text)), fmt.Sprint(flight)) {
					t.Errorf("flight %d counts as done; read were %q", flight, text)
				}
			}
			if !strings.Contains(complaints.String(), c.want) {
				t.Errorf("got errors %q, want %q", complaints.String(), c.want)
			}
		})
	}
}

func TestExecCrashLoopBacksOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began := time.Now()
	running(t, ExecConfig{Argv: sh(`echo >>starts; exit 1`), Dir: dir})
	eventually(t, "four starts", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "starts"))
		return len(text) >= 4
	})
	// The pauses are at least half of 100, 200 and 400 ms.
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("got four starts within %s, want at least 350ms", took)
	}
}

func TestExecCancelKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`sleep 600 & setsid sleep 600 & echo $$ $! >pids.tmp; mv pids.tmp pids; wait`), Dir: dir})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		eventually(t, "the child to start", func() bool { _, err := os.Stat(filepath.Join(dir, "pids")); return err == nil })
		cancel(lowkiq.ErrTimeout)
	}()
	if err := e.Handle(ctx, batch()); !errors.Is(err, lowkiq.ErrTimeout) {
		t.Errorf("got %v, want the cause of the cancel", err)
	}
	// There is nothing to wait for: when Handle has returned, they are gone.
	for _, pid := range pidsIn(t, filepath.Join(dir, "pids")) {
		if alive(pid) {
			t.Errorf("process %d lives after Handle returned", pid)
		}
	}
}

// pauses is a log that keeps the longest pause before a new start of a child.
type pauses struct{ longest atomic.Int64 }

func (*pauses) Enabled(context.Context, slog.Level) bool { return true }
func (p *pauses) WithAttrs([]slog.Attr) slog.Handler     { return p }
func (p *pauses) WithGroup(string) slog.Handler          { return p }
func (p *pauses) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "restart_in" {
			p.longest.Store(max(p.longest.Load(), int64(a.Value.Duration())))
		}
		return true
	})
	return nil
}

// A child does not count as broken when somebody ends its batches by hand, one after another.
func TestExecCancelsDoNotAddUp(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), &pauses{}
	e := running(t, ExecConfig{Argv: loop(`touch started; sleep 600`), Dir: dir, Log: slog.New(log)})
	for range 4 {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			eventually(t, "the call to begin", func() bool { return os.Remove(filepath.Join(dir, "started")) == nil })
			cancel(lowkiq.ErrCancelled)
		}()
		if err := e.Handle(ctx, batch()); !errors.Is(err, lowkiq.ErrCancelled) {
			t.Errorf("got %v, want the cause of the cancel", err)
		}
	}
	logbuf.Flush(e.cfg.Log, time.Minute)
	if longest := time.Duration(log.longest.Load()); longest == 0 || longest > 100*time.Millisecond {
		t.Errorf("a child was started again %s after one that was told to stop, want at most 100ms", longest)
	}
}

func TestExecCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`sleep 600`)})
	busy, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Handle(busy, batch()) })
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, lowkiq.ErrLeaseLost)
	defer cancel()
	_ = e.Handle(ctx, batch())
	err := e.Handle(ctx, batch())
	stop()
	wg.Wait()
	if !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("got %v, want the cause of the cancel", err)
	}
}

func TestExecConcurrentHandles(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: echoChild(), Processes: 4, Env: []string{"HANDLER_TEST_ROLE=echo"}})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if err := e.Handle(t.Context(), batch()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func echoChild() []string { return []string{os.Args[0]} }

func TestExecStderrIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e, err := NewExec(ExecConfig{Argv: loop(`echo one >&2; printf two >&2; echo '{"ok":true}'`), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	if err := e.Handle(ctx, batch()); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if got := log.String(); !strings.Contains(got, `command=sh line=one`) || !strings.Contains(got, `command=sh line=two`) {
		t.Errorf("got log %q, want the lines one and two", got)
	}
}

func TestExecPostponesWhileItCannotStart(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad")
	// Another process writes the file. A child that this process forks in the meantime would keep the
	// file open, and an open file cannot be started.
	if out, err := exec.Command("sh", "-c", `echo '#!/no/such/interpreter' >"$0" && chmod +x "$0"`, bad).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	e := running(t, ExecConfig{Argv: []string{bad}})
	var got lowkiq.Postpone
	if err := e.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After < time.Second || !strings.Contains(got.Reason, "no such file") {
		t.Errorf("got %v, want to be postponed with the reason", err)
	}
}

// TestExecPostponesWhatNoChildIsGiven checks that a child that has read no bytes of a batch has failed no batch. Such
// children end at once, or after they have closed their stdin.
func TestExecPostponesWhatNoChildIsGiven(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`exit 4`, `exec <&-; sleep 0.2; exit 4`} {
		e := running(t, ExecConfig{Argv: sh(script), Log: slog.New(slog.DiscardHandler)})
		var got lowkiq.Postpone
		if err := e.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After != time.Second || !strings.Contains(got.Reason, "exit status 4") {
			t.Errorf("%s: got %v, want to be postponed by 1s with the status", script, err)
		}
	}
}

func TestExecAfterRun(t *testing.T) {
	t.Parallel()
	e, err := NewExec(ExecConfig{Argv: loop(`echo '{"ok":true}'`)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Run(ctx); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if err := e.Handle(t.Context(), batch()); !errors.Is(err, lowkiq.ErrShutdown) {
		t.Errorf("got %v, want ErrShutdown", err)
	}
	if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got %v, want an error of the second Run", err)
	}
}

func TestExecConfigErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  ExecConfig
		want string
	}{
		"no command":      {ExecConfig{}, "exec: empty"},
		"missing command": {ExecConfig{Argv: []string{"no-such-command"}}, `"no-such-command": executable file not found`},
		"missing file":    {ExecConfig{Argv: []string{"./handler"}, Dir: "/tmp"}, "/tmp/handler"},
		"zero byte":       {ExecConfig{Argv: []string{"a\x00"}}, "zero byte"},
		"env":             {ExecConfig{Argv: []string{"sh"}, Env: []string{"A"}}, "KEY=value"},
		"processes":       {ExecConfig{Argv: []string{"sh"}, Processes: -1}, "processes: -1"},
	} {
		if _, err := NewExec(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestExecNeedsGuard(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HANDLER_TEST_ROLE=unguarded")
	if got, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(got), "call handler.Guard()") {
		t.Errorf("got %q, %v, want to be told to call Guard", got, err)
	}
}

func BenchmarkExec(b *testing.B) {
	e := running(b, ExecConfig{Argv: echoChild(), Env: []string{"HANDLER_TEST_ROLE=echo"}})
	one := batch()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Handle(b.Context(), one); err != nil {
			b.Fatal(err)
		}
	}
}

// TestExecChildren checks that Children returns how many children run, and how many have a batch.
func TestExecChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := running(t, ExecConfig{Argv: loop(`until [ -e done ]; do sleep .01; done; echo '{"ok":true}'`), Dir: dir, Processes: 2})
	await := func(wantRunning, wantBusy int) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for running, busy := e.Children(); running != wantRunning || busy != wantBusy; running, busy = e.Children() {
			if time.Now().After(deadline) {
				t.Fatalf("got %d children, %d busy, want %d and %d", running, busy, wantRunning, wantBusy)
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	await(2, 0)
	answered := make(chan error, 1)
	go func() { answered <- e.Handle(t.Context(), batch()) }()
	await(2, 1)
	if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	await(2, 0)
}

// awaitReady waits until Ready returns an error, or nil, that want accepts.
func awaitReady(t *testing.T, e *Exec, what string, want func(error) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !want(e.Ready()) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s; it says %v", what, e.Ready())
		}
	}
}

// A command whose processes end before they answer is not ready. Ready says why, without the output of
// the processes. The command is ready again once a process answers, or lives for long without a batch.
func TestExecReady(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		dir := t.TempDir()
		script := `if [ ! -e mended ]; then echo secret >&2; exit 4; fi; while IFS= read -r line; do echo '{"ok":true}'; done`
		e := running(t, ExecConfig{Argv: sh(script), Dir: dir, Processes: 2}, func(e *Exec) {
			e.settled = 2 * time.Second
			if answers {
				e.settled = time.Hour
			}
		})
		awaitReady(t, e, "it is not ready", func(err error) bool { return err != nil })
		if got := e.Ready().Error(); got != "sh ends before it answers: exit status 4" {
			t.Errorf("got %q, want the exit status and no stderr", got)
		}
		if err := os.WriteFile(filepath.Join(dir, "mended"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if answers {
			if err := e.Handle(t.Context(), batch()); err != nil {
				t.Fatal(err)
			}
		}
		awaitReady(t, e, "it is ready again", func(err error) bool { return err == nil })
	}
}

// A command that cannot be started is not ready either, and says what its script lacks.
func TestExecReadyCannotStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"#!/no/such/interpreter -x\nexit\n": `; its first line must name an interpreter that exists, and names "/no/such/interpreter -x"`,
		"print(1)\n":                        "; a script must begin with its interpreter, as in #!/usr/bin/env python3",
	} {
		path := filepath.Join(t.TempDir(), "handler")
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		e := running(t, ExecConfig{Argv: []string{path}})
		awaitReady(t, e, "it is not ready", func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "does not start: ") && strings.HasSuffix(err.Error(), want)
		})
	}
}

// A command does not count as bad because its processes were killed with their batches, as after a
// lost lease.
func TestExecReadyAfterCancels(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`touch "$LOG"; sleep 600`), Env: []string{"LOG=" + filepath.Join(t.TempDir(), "log")}})
	for range badStarts + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := e.Handle(ctx, batch()); err == nil {
			t.Error("got an answer of a process that gives none")
		}
		cancel()
	}
	if err := e.Ready(); err != nil {
		t.Errorf("got %v, want it to be ready", err)
	}
}

// A guard kills its child at the lease's end, before the node has noticed that end. The child did not
// fail its batch. No retry is counted, and the command does not count as bad.
func TestKilledByItsGuard(t *testing.T) {
	t.Parallel()
	busy := filepath.Join(t.TempDir(), "busy")
	e := running(t, ExecConfig{Argv: loop(`touch ` + busy + `; sleep 60`)})
	for range badStarts + 1 {
		err := handleBusy(t, e, busy, func() { e.Grant(time.Millisecond) })
		var postponed lowkiq.Postpone
		if !errors.Is(err, lowkiq.ErrLeaseLost) || !errors.As(err, &postponed) || postponed.Reason != "sh: killed: lease lost" {
			t.Errorf("got %v, want it to be postponed as the lease is lost", err)
		}
	}
	if err := e.Ready(); err != nil {
		t.Errorf("got %v, want it to be ready", err)
	}
}

// The same holds for a batch whose child is killed by the end of Run.
func TestKilledByTheEndOfRun(t *testing.T) {
	t.Parallel()
	busy := filepath.Join(t.TempDir(), "busy")
	e, err := NewExec(ExecConfig{Argv: loop(`touch ` + busy + `; sleep 60`), Processes: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	err = handleBusy(t, e, busy, cancel)
	var postponed lowkiq.Postpone
	if !errors.Is(err, lowkiq.ErrShutdown) || !errors.As(err, &postponed) {
		t.Errorf("got %v, want it to be postponed as the node shuts down", err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// handleBusy returns the answer to a batch. It calls do once the child works on the batch, which
// creates the file busy.
func handleBusy(t *testing.T, e *Exec, busy string, do func()) error {
	t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- e.Handle(t.Context(), batch()) }()
	eventually(t, "the child to work", func() bool { return os.Remove(busy) == nil })
	do()
	return <-answer
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
