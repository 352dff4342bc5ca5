package rebalance

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/internal/connlimit"
)

// patience is for a machine that runs all packages' tests at once.
const patience = time.Minute

// listen starts a listener on a private port.
func listen(t *testing.T, cluster string) *Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listenOn(t, cluster, ln)
}

// listenOn starts a listener on a port that is open.
func listenOn(t *testing.T, cluster string, ln net.Listener) *Listener {
	t.Helper()
	l := NewListener(ListenerConfig{Cluster: cluster, Listener: ln, timeout: patience})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func open(t *testing.T, l *Listener, server string) *guarded {
	t.Helper()
	transport, err := l.Transport(server)
	if err != nil {
		t.Fatal(err)
	}
	n := transport.(*guarded)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// Who says nothing has no more connections than the bound, and keeps no server out; one that has greeted stays.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const bound = 4
	set := connlimit.New(connlimit.Limit{Total: bound})
	to := listenOn(t, "c", connlimit.Listener{Listener: plain, Set: set})
	target := open(t, to, "b#7.1")
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case rpc := <-target.Consumer():
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case <-stop:
				return
			}
		}
	}()
	from := open(t, listen(t, "c"), "a#7.1")
	for range 2 {
		for range 3 * bound {
			silent, err := net.Dial("tcp", plain.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
		}
		var got raft.RequestVoteResponse
		if err := from.RequestVote("b#7.1", Address("b#7.1", to.Address()), &raft.RequestVoteRequest{}, &got); err != nil || !got.Granted {
			t.Errorf("got %v, %v, want an answer", got.Granted, err)
		}
		if got := set.Len(); got > bound {
			t.Errorf("got %d connections, want %d at most", got, bound)
		}
	}
}

// TestStreamRefusesOtherHistories: only a connection for exactly this cluster,
// record and server reaches Raft.
func TestStreamRefusesOtherHistories(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, cluster, server, target string
		passes                        bool
	}{
		{"the right one", "c", "a#7.1", "b#7.1", true},
		{"another cluster", "d", "a#7.1", "b#7.1", false},
		{"another record", "c", "a#8.1", "b#7.1", false},
		{"a dropped server", "c", "a#7.1", "b#7.0", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := listen(t, "c")
			target := open(t, to, "b#7.1")
			go func() {
				for rpc := range target.Consumer() {
					rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
					return
				}
			}()
			from := open(t, listen(t, tt.cluster), tt.server)
			var got raft.RequestVoteResponse
			err := from.RequestVote(raft.ServerID(tt.target), Address(tt.target, to.Address()), &raft.RequestVoteRequest{}, &got)
			if (err == nil) != tt.passes {
				t.Errorf("got error %v, want success %v", err, tt.passes)
			}
			if !tt.passes { // let the consumer end
				good := open(t, listen(t, "c"), "z#7.1")
				if err := good.RequestVote("b#7.1", Address("b#7.1", to.Address()), &raft.RequestVoteRequest{}, &got); err != nil {
					t.Errorf("the right one afterwards: %v", err)
				}
			}
		})
	}
}

func TestStreamOneServerAtATime(t *testing.T) {
	t.Parallel()
	l := listen(t, "c")
	first := open(t, l, "a#7.1")
	if _, err := l.Transport("a#8.2"); err == nil {
		t.Error("a second transport was opened beside the first")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, l, "a#8.2")
}

// TestStreamClosesNoise: whatever is not a greeting is closed.
func TestStreamClosesNoise(t *testing.T) {
	t.Parallel()
	l := listen(t, "c")
	open(t, l, "a#7.1")
	for _, noise := range []string{"\xff\xffGET / HTTP/1.1\r\n", "\x00\x02{}", "\x00\x03{x}"} {
		conn, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(noise)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF && !isReset(err) {
			t.Errorf("%q: got %v, want the connection closed", noise, err)
		}
		_ = conn.Close()
	}
}

func isReset(err error) bool {
	nerr, ok := err.(net.Error)
	return ok && !nerr.Timeout()
}

// TestAgentsOverTCP: three processes form a cluster over real sockets.
func TestAgentsOverTCP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		w.start(fmt.Sprintf("n%d", len(w.alive())), func(p *process) {
			l := listen(t, "c")
			p.host = l.Address()
			a, err := New(Config{Boot: p.boot, TTL: 3 * time.Second, Record: keeperRecord{p}, Mark: keeperMark{p}, Source: p, Transport: l.Transport})
			if err != nil {
				t.Fatal(err)
			}
			p.agent = a
		})
	}
	deadline := time.After(2 * patience)
	for !w.agreed() || len(w.voters()) != 3 {
		select {
		case <-deadline:
			t.Fatalf("no cluster: %+v", w.processes[0].agent.Status())
		case <-time.After(20 * time.Millisecond): // Changed belongs to watch
		}
	}
}
