package node

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue"
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
	me := thisProcess()
	if me.Host == "" || me.PID != os.Getpid() || me.Start == "" {
		t.Fatalf("this process is %+v", me)
	}
	cmd, end := sleeper(t)
	start, err := processStartTicks(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	alive := process{Host: me.Host, PIDs: me.PIDs, PID: cmd.Process.Pid, Start: start}
	with := func(change func(*process)) process {
		p := alive
		change(&p)
		return p
	}
	for _, c := range []struct {
		name  string
		me    process
		other process
		want  bool
	}{
		{"alive", me, alive, false},
		{"myself", me, me, false},
		{"pid used again", me, with(func(p *process) { p.Start = "1" }), true},
		{"no such pid", me, with(func(p *process) { p.PID = 1 << 30 }), true},
		{"another host's", me, with(func(p *process) { p.Host = "x"; p.PID = 1 << 30 }), false},
		{"another namespace's", me, with(func(p *process) { p.PIDs = "pid:[1]"; p.PID = 1 << 30 }), false},
		{"unknown pid", me, with(func(p *process) { p.PID = 0 }), false},
		{"unknown start", me, with(func(p *process) { p.Start = ""; p.PID = 1 << 30 }), false},
		{"unknown host here", process{}, with(func(p *process) { p.PID = 1 << 30 }), false},
		{"nothing known at all", process{}, process{}, false},
	} {
		if got := c.me.gone(c.other); got != c.want {
			t.Errorf("%s: gone is %v, want %v", c.name, got, c.want)
		}
	}
	end()
	// It is a zombie until its parent, this test, waits for it.
	await(t, "the zombie is seen as gone", func() bool { return me.gone(alive) })
	cmd.Wait() //nolint:errcheck // killed
	if !me.gone(alive) {
		t.Error("a process that was waited for is not gone")
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

func TestIdentityOutlivesLease(t *testing.T) {
	t.Parallel()
	who := identity{process{Host: "h", PIDs: "p", PID: 3, Start: "9"}, 3000, false}
	text, err := json.Marshal(who)
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte(`{"host":"h","pids":"p","pid":3,"start":"9","ttl_ms":3000}`); !bytes.Equal(text, want) {
		t.Errorf("got %s, want %s", text, want)
	}
	if got, ok := parseIdentity(queue.Instance{Identity: text}); !ok || got != who {
		t.Errorf("got %+v %v, want %+v", got, ok, who)
	}
	for _, bad := range [][]byte{nil, []byte("x")} {
		if _, ok := parseIdentity(queue.Instance{Identity: bad}); ok {
			t.Errorf("%q was taken for an identity", bad)
		}
	}
}

// A dead node's shards are not seized before its children had time to die, too.
func TestEndedWithChildren(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	who := thisProcess()
	who.PID = cmd.Process.Pid
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	n := &Node{process: thisProcess(), ends: map[string]time.Duration{}}
	if !n.ended("n/a.1", identity{process: who}) {
		t.Error("without children: got not ended, want ended")
	}
	with := identity{process: who, Children: true}
	if n.ended("n/b.1", with) {
		t.Error("with children, just seen: got ended, want not yet")
	}
	n.ends["n/b.1"] -= childrenGone
	if !n.ended("n/b.1", with) {
		t.Error("with children, after their time: got not ended, want ended")
	}
}

// Two leases of one process, the older one about to run out: the process is what the newer
// one says, in whatever order they are read.
func TestLatest(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	older := LeaseInfo{Node: "n1", Boot: "B", Instance: "n1/B.9", Start: at, Draining: true}
	newer := LeaseInfo{Node: "n1", Boot: "B", Instance: "n1/B.10", Start: at.Add(time.Second)}
	for _, leases := range [][]LeaseInfo{{older, newer}, {newer, older}} {
		if got := latest(leases); len(got) != 1 || got[0].Instance != newer.Instance {
			t.Errorf("got %+v, want the newer one alone", got)
		}
	}
}
