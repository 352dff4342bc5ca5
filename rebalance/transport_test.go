package rebalance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/internal/network/connlimit"
)

// patience is for a machine that runs all packages' tests at once.
const patience = time.Minute

// testLimit bounds a request in bytes.
const testLimit = 1 << 20

// listen starts a listener on a private port.
func listen(t *testing.T, cluster string, change ...func(*ListenerConfig)) *Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listenOn(t, cluster, ln, change...)
}

// listenOn starts a listener on a port that is open.
func listenOn(t *testing.T, cluster string, ln net.Listener, change ...func(*ListenerConfig)) *Listener {
	t.Helper()
	cfg := ListenerConfig{Cluster: cluster, Listener: ln, timeout: patience, requestLimit: testLimit}
	for _, f := range change {
		f(&cfg)
	}
	l := NewListener(cfg)
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

// Clients that send nothing have no more connections than the bound, and keep no server out; one
// that has sent its handshake stays.
func TestSilentConnectionsKeepNoServerOut(t *testing.T) {
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

// TestStreamRefusesOtherHistories checks that only a connection for exactly this cluster, record and server reaches
// Raft.
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

// TestStreamClosesNoise checks that a stream without a handshake is closed.
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

// TestAgentsOverTCP forms a cluster of three processes over real sockets.
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

// What Raft would panic at is refused, and the connection is of use afterwards.
func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	good := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "b#7.1", Address: "b#7.1@h"}}})
	entry := func(kind raft.LogType, data []byte) []*raft.Log {
		return []*raft.Log{{Index: 5, Term: 1, Type: kind, Data: data}}
	}
	to := listen(t, "c")
	target := open(t, to, "b#7.1")
	go func() {
		for {
			select {
			case rpc := <-target.Consumer():
				if _, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
					_, _ = io.Copy(io.Discard, rpc.Reader)
					rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
					continue
				}
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-t.Context().Done():
				return
			}
		}
	}()
	from := open(t, listen(t, "c"), "a#7.1")
	address := Address("b#7.1", to.Address())
	for _, tt := range []struct {
		name    string
		entries []*raft.Log
		want    string // "" = it is passed on
	}{
		{"a command", entry(raft.LogCommand, []byte("x")), ""},
		{"a configuration", entry(raft.LogConfiguration, good), ""},
		{"no configuration", entry(raft.LogConfiguration, []byte("\xff\xff")), "raft configuration of 2 bytes"},
		{"a cut configuration", entry(raft.LogConfiguration, good[:len(good)-3]), "raft configuration of"},
		{"an old form of it", entry(raft.LogAddPeerDeprecated, good), "unknown type"},
		{"an unknown type", entry(99, nil), "unknown type 99"},
		{"a gap", []*raft.Log{{Index: 7, Term: 1}}, "raft entry 7 follows entry 4"},
		{"a command again", entry(raft.LogCommand, []byte("x")), ""},
	} {
		var answer raft.AppendEntriesResponse
		err := from.AppendEntries("b#7.1", address, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 4, PrevLogTerm: 1, Entries: tt.entries}, &answer)
		if got := errText(err); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	for _, tt := range []struct {
		name   string
		config []byte
		size   int64
		want   string
	}{
		{"a snapshot", good, 4, ""},
		{"one of no configuration", []byte{0xff}, 4, "raft configuration of 1 bytes"},
		{"one that is too large", good, 700 << 20, "raft snapshot of 734003200 bytes"},
	} {
		request := &raft.InstallSnapshotRequest{SnapshotVersion: raft.SnapshotVersionMax, Term: 1, Configuration: tt.config, Size: tt.size}
		var answer raft.InstallSnapshotResponse
		err := from.InstallSnapshot("b#7.1", address, request, &answer, bytes.NewReader(make([]byte, 4)))
		if got := errText(err); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A request is not decoded beyond the limit, however long it says that it is.
func TestGuardBoundsRequests(t *testing.T) {
	t.Parallel()
	to := listen(t, "c")
	target := open(t, to, "b#7.1")
	from := open(t, listen(t, "c"), "a#7.1")
	var answer raft.AppendEntriesResponse
	huge := &raft.AppendEntriesRequest{Entries: []*raft.Log{{Index: 1, Data: make([]byte, testLimit+1)}}}
	if err := from.AppendEntries("b#7.1", Address("b#7.1", to.Address()), huge, &answer); err == nil {
		t.Error("a request beyond the limit was answered")
	}
	select {
	case rpc := <-target.Consumer():
		t.Errorf("got %T, want nothing to reach Raft", rpc.Command)
	default:
	}
}

// What fails is remembered from its first attempt on, by Raft's dials and by probes, until one
// succeeds.
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
	l.failures.record("h4:7947", time.Now(), time.Now().Add(2*failingKept), broken)
	if got := l.Failing(); len(got) != 1 || got[0].Address != "h4:7947" {
		t.Errorf("got %v, want h4:7947: h2 was not tried for long", got)
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
	go func() { passed <- l.stream.deliver(conn) }()
	if !<-passed || !l.Called() {
		t.Error("not called, want called")
	}
	if err := transport.(raft.WithClose).Close(); err != nil || l.Called() {
		t.Errorf("called after its end: %v", err)
	}
}

// A handshake is bounded.
func TestHandshakeLimit(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]string{handshakeLimit: "", handshakeLimit + 1: "the limit is 1024", 1<<16 - 1: "the limit is 1024"} {
		text := `{"cluster":"` + strings.Repeat("x", size-len(`{"cluster":""}`)) + `"}`
		_, err := readHandshake(bytes.NewReader(append(binary.BigEndian.AppendUint16(nil, uint16(size)), text...)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: got %v, want %q", size, err, want)
		}
	}
}
