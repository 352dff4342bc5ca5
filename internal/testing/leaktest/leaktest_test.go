package leaktest

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestALeakIsFound(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-end }()
	if err := awaitNone(findGoroutines, 0); err == nil || !strings.Contains(err.Error(), "TestALeakIsFound") {
		t.Errorf("got %v, want the goroutine named", err)
	}
	close(end)
	<-ended
}

func TestWhatEndsLateIsNoLeak(t *testing.T) {
	left := 3
	err := awaitNone(func() error {
		if left--; left > 0 {
			return errors.New("left")
		}
		return nil
	}, time.Hour)
	if err != nil || left != 0 {
		t.Errorf("got %v with %d looks to come, want nil after the third", err, left)
	}
}
