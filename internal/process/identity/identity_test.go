package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/procs"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
)

// sleeper starts a process that lives until its stdin is closed.
func sleeper(t *testing.T) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { in.Close(); cmd.Process.Kill() } //nolint:errcheck // it may have ended
	t.Cleanup(func() { end(); cmd.Wait() })         //nolint:errcheck // of no interest
	return cmd, end
}

func TestGone(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("a death is proven on Linux only; elsewhere the lease runs out")
	}
	me := ThisProcess()
	if me.Host == "" || me.PID != os.Getpid() || me.Start == "" {
		t.Fatalf("this process is %+v", me)
	}
	cmd, end := sleeper(t)
	start, err := procs.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	alive := me
	alive.PID, alive.Start = cmd.Process.Pid, start
	with := func(change func(*Process)) Process {
		p := alive
		change(&p)
		return p
	}
	moved := me // as a checkpoint of it remembers on another host
	moved.Start = "1"
	for _, c := range []struct {
		name  string
		me    Process
		other Process
		want  bool
	}{
		{"alive", me, alive, false},
		{"myself", me, me, false},
		{"pid used again", me, with(func(p *Process) { p.Start = "1" }), true},
		{"no such pid", me, with(func(p *Process) { p.PID = 1 << 30 }), true},
		{"another host's", me, with(func(p *Process) { p.Host = "x"; p.PID = 1 << 30 }), false},
		{"another namespace's", me, with(func(p *Process) { p.PIDs = "pid:[1]"; p.PID = 1 << 30 }), false},
		{"another time namespace's", me, with(func(p *Process) { p.Times = "time:[1]"; p.Start = "1" }), false},
		{"another host's with the same boot id", me, with(func(p *Process) { p.Addresses = "203.0.113.9"; p.PID = 1 << 30 }), false},
		{"a host's with one address more", me, with(func(p *Process) { p.Addresses += " 203.0.113.9"; p.PID = 1 << 30 }), false},
		{"a host's with one address less", me, with(func(p *Process) { p.Addresses, _, _ = strings.Cut(p.Addresses, " "); p.PID = 1 << 30 }), true},
		{"unknown addresses", me, with(func(p *Process) { p.Addresses = ""; p.PID = 1 << 30 }), false},
		{"unknown time namespace", me, with(func(p *Process) { p.Times = ""; p.PID = 1 << 30 }), false},
		{"unknown PID namespace", me, with(func(p *Process) { p.PIDs = ""; p.PID = 1 << 30 }), false},
		{"seen from a restored checkpoint", moved, with(func(p *Process) { p.PID = 1 << 30 }), false},
		{"unknown pid", me, with(func(p *Process) { p.PID = 0 }), false},
		{"unknown start", me, with(func(p *Process) { p.Start = ""; p.PID = 1 << 30 }), false},
		{"unknown host here", Process{}, with(func(p *Process) { p.PID = 1 << 30 }), false},
		{"nothing known at all", Process{}, Process{}, false},
	} {
		if got := c.me.IsGone(c.other); got != c.want {
			t.Errorf("%s: gone is %v, want %v", c.name, got, c.want)
		}
	}
	end()
	// It is a zombie until its parent, this test, waits for it.
	for deadline := time.Now().Add(time.Minute); !me.IsGone(alive); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie is not seen as gone")
		}
	}
	cmd.Wait() //nolint:errcheck // killed
	if !me.IsGone(alive) {
		t.Error("a process that was waited for is not gone")
	}
}

// judgedVariable makes this test binary say what it thinks of a process.
const judgedVariable = "LOWKIQ_IDENTITY_TEST_JUDGED"

// judgement is the answer of such a process.
type judgement struct {
	Process Process
	Gone    bool
}

// judge answers, and lives until its stdin is closed.
func judge(text string) {
	var other Process
	if err := json.Unmarshal([]byte(text), &other); err != nil {
		panic(err)
	}
	me := ThisProcess()
	if err := json.NewEncoder(os.Stdout).Encode(judgement{me, me.IsGone(other)}); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// The clock from which a process's start is counted differs between time namespaces, so a
// living process seems to be another one. Neither side may call the other dead.
func TestTimeNamespaceProvesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("time namespaces are Linux's")
	}
	me := ThisProcess()
	text, err := json.Marshal(me)
	if err != nil {
		t.Fatal(err)
	}
	unshare := []string{"unshare", "--time", "--boottime", "100000", "--fork", "--kill-child", "--"}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED HERE: no new time namespace for this user (it needs root, Linux 5.6 and unshare(1) of util-linux): %v %s", err, out)
	}
	for _, c := range []struct {
		name string
		argv []string
		same bool
	}{
		{"this namespace", nil, true},
		{"another namespace", unshare, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv := append(c.argv, os.Args[0])
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Env = append(os.Environ(), judgedVariable+"="+string(text))
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var other judgement
			err = json.NewDecoder(out).Decode(&other)
			alive := err == nil && me.IsGone(other.Process)
			in.Close()
			cmd.Wait() //nolint:errcheck // of no interest
			switch {
			case err != nil:
				t.Fatal(err)
			case other.Gone:
				t.Errorf("the other process says that this one, which lives, is gone: %+v", other.Process)
			case alive:
				t.Errorf("this process says that the other one, which lives, is gone: %+v", other.Process)
			case (other.Process.Times == me.Times) != c.same:
				t.Errorf("time namespace %q beside %q", other.Process.Times, me.Times)
			}
			// The same namespace proves a death; another one proves none.
			if got := me.IsGone(other.Process); got != c.same {
				t.Errorf("once it has ended: gone is %v, want %v", got, c.same)
			}
		})
	}
}

// TestExists is the answer for processes that /proc hides from other users.
func TestExists(t *testing.T) {
	t.Parallel()
	if !exists(os.Getpid()) || !exists(1) {
		t.Error("a living process does not exist")
	}
	if runtime.GOOS == "linux" && exists(1<<30) {
		t.Error("no process has that pid")
	}
}

// A dead node's shards are not seized before its children are gone, too, however long their guards
// take.
func TestEndedWithChildren(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	who := ThisProcess()
	who.PID = cmd.Process.Pid
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	guard := &exec.Cmd{Path: sleep, Args: []string{procs.GuardName, procs.ProcessName(who.PID, who.Start)}} // for so many seconds
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	for end, seen := time.Now().Add(time.Minute), false; !seen; time.Sleep(time.Millisecond) { // its words are there a moment after it is
		words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guard.Process.Pid))
		if seen = err != nil || bytes.HasPrefix(words, []byte(procs.GuardName)); time.Now().After(end) {
			t.Fatalf("the guard's command line is %q, %v", words, err)
		}
	}
	me := ThisProcess()
	if !me.IsGoneWithChildren(Identity{Process: who}) {
		t.Error("without children: got not ended, want ended")
	}
	with := Identity{Process: who, Children: true}
	if me.IsGoneWithChildren(with) {
		t.Error("with a guard: got ended, want not yet")
	}
	_ = guard.Process.Kill()
	_ = guard.Wait() // it was killed
	if !me.IsGoneWithChildren(with) {
		t.Error("with children, after the guard's end: got not ended, want ended")
	}
	who.Start += "1"
	if !me.IsGoneWithChildren(Identity{Process: who, Children: true}) {
		t.Error("another process without a guard: got not ended, want ended")
	}
}

func TestSameBoot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		x, y string
		want bool
	}{
		{"n1/B.1", "n1/B.1", true},
		{"n1/B.1", "n1/B.12", true},
		{"n1.x/B.1", "n1.x/B.2", true},
		{"n1/B.1", "n1/C.1", false},
		{"n1/B.1", "n2/B.1", false},
		{"n1/B", "n1/B", false},
		{"", "", false},
	} {
		if got := SameBoot(c.x, c.y); got != c.want {
			t.Errorf("SameBoot(%q, %q) is %v, want %v", c.x, c.y, got, c.want)
		}
	}
}

func TestMayBegin(t *testing.T) {
	t.Parallel()
	says := func(name, text string) queuelease.Instance {
		return queuelease.Instance{Name: name, Lease: []byte(text)}
	}
	got := MayBegin("orders", []queuelease.Instance{
		says("works", `{"queues":{"orders":0}}`),
		says("another paused", `{"queues":{"orders":2,"mail":1},"paused":["mail"]}`),
		says("noticed", `{"queues":{"orders":2},"paused":["mail","orders"]}`),
		says("another queue", `{"queues":{"mail":1}}`),
		says("unreadable", `{`),
		{Name: "no lease"},
	})
	if want := []string{"works", "another paused", "unreadable"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
