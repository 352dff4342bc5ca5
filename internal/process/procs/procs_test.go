package procs

import (
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// A guard is found by the name of whom it guards for, and by no other one.
func TestGuarded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	name := ProcessName(3600, "77"+SelfName()[len(SelfName())-2:]) // to sleep these are seconds
	guarded := func() bool {
		t.Helper()
		found, err := IsGuarded(name)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if guarded() {
		t.Fatal("guarded before there is a guard")
	}
	guard := &exec.Cmd{Path: sleep, Args: []string{GuardName, name}}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !guarded(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its guard is not found")
		}
	}
	for _, other := range []string{name + "0", name[:len(name)-1], ""} {
		if found, err := IsGuarded(other); found || err != nil {
			t.Errorf("%q: got %v %v, want none", other, found, err)
		}
	}
	_ = guard.Process.Kill()
	_ = guard.Wait() // it was killed
	if guarded() {
		t.Error("guarded after its guard's end")
	}
}
