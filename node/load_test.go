package node

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/metrics"
)

// TestLoad checks that the load in a lease changes with each measurement and not in between.
func TestLoad(t *testing.T) {
	t.Parallel()
	cpu, failure := 5*time.Second, error(nil)
	l := &load{usage: func() (time.Duration, int64, error) { return cpu, 300<<20 + 7, failure }}
	slots := func() metrics.Use { return metrics.Use{Total: 8, Busy: 3} }
	for _, step := range []struct {
		at, cpu time.Duration
		want    *identity.Load
	}{
		{time.Second, 5 * time.Second, nil}, {2 * time.Second, 6 * time.Second, nil},
		{11 * time.Second, 20 * time.Second, &identity.Load{CPU: 1.5, Memory: 300, Slots: 8, Busy: 3}},
		{20 * time.Second, 28 * time.Second, &identity.Load{CPU: 1.5, Memory: 300, Slots: 8, Busy: 3}},
		{31 * time.Second, 25 * time.Second, &identity.Load{CPU: .25, Memory: 300, Slots: 8, Busy: 3}},
	} {
		cpu = step.cpu
		if got := l.measure(step.at, slots); !reflect.DeepEqual(got, step.want) {
			t.Errorf("at %s: got %+v, want %+v", step.at, got, step.want)
		}
	}
	failure = errors.New("no /proc")
	if got := l.measure(time.Hour, slots); got != nil {
		t.Errorf("without /proc: got %+v, want nothing", got)
	}
}

// TestLoadOfThisProcess checks that the system tells what this process uses.
func TestLoadOfThisProcess(t *testing.T) {
	t.Parallel()
	cpu, memory, err := newLoad().usage()
	if err != nil {
		t.Skipf("the system does not tell: %v", err)
	}
	if cpu < 0 || cpu > 24*time.Hour || memory < 1<<20 || memory > 1<<40 {
		t.Errorf("got %s and %d bytes", cpu, memory)
	}
}
