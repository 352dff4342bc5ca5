package rebalance

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// What fails is remembered from its first attempt on, by Raft's dials and by probes, until one succeeds.
func TestFailing(t *testing.T) {
	t.Parallel()
	broken := errors.New("no route")
	dialed := broken
	l := NewListener(ListenerConfig{Cluster: "c", Advertise: "h1:1", Dial: func(context.Context, string) (net.Conn, error) {
		if dialed != nil {
			return nil, dialed
		}
		conn, other := net.Pipe()
		_ = other.Close()
		return conn, nil
	}})
	s := &stream{listener: l}
	if _, err := s.Dial(Address("b#7.1", "h2:7947"), time.Second); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	first := l.Failing()
	l.Probe(t.Context(), "h2:7947")
	second := l.Failing()
	if len(first) != 1 || len(second) != 1 || second[0].Since != first[0].Since || !second[0].Last.After(first[0].Last) || second[0].Address != "h2:7947" || !errors.Is(second[0].Err, broken) {
		t.Errorf("got %v, then %v; want h2:7947 since the first", first, second)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	l.Probe(ended, "h3:7947") // the process ends
	if got := l.Failing(); len(got) != 1 {
		t.Errorf("got %v, want h2:7947 alone", got)
	}
	l.reach.note("h4:7947", time.Now(), time.Now().Add(2*failingKept), broken)
	if got := l.Failing(); len(got) != 1 || got[0].Address != "h4:7947" {
		t.Errorf("got %v, want h4:7947: nobody has tried h2 for long", got)
	}
	dialed = nil
	l.Probe(t.Context(), "h4:7947")
	if got := l.Failing(); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}

// Called tells of a connection for the current server alone.
func TestCalled(t *testing.T) {
	t.Parallel()
	l := NewListener(ListenerConfig{Cluster: "c", Advertise: "h1:1"})
	if l.Called() {
		t.Error("called without a server")
	}
	transport, err := l.Transport("b#7.1")
	if err != nil {
		t.Fatal(err)
	}
	if l.Called() {
		t.Error("called before anybody has")
	}
	conn, other := net.Pipe()
	defer other.Close()
	passed := make(chan bool, 1)
	go func() { passed <- l.stream.pass(conn) }()
	if !<-passed || !l.Called() {
		t.Error("not called, want called")
	}
	if err := transport.(raft.WithClose).Close(); err != nil || l.Called() {
		t.Errorf("called after its end: %v", err)
	}
}

func TestSameGroup(t *testing.T) {
	t.Parallel()
	if !SameGroup("b1#7.1", "b2#7.3") || SameGroup("b1#7.1", "b2#6.1") || SameGroup("", "") || SameGroup("x", "y") {
		t.Error("want the same record, and one")
	}
}
