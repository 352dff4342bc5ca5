package rebalance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// attacked is a follower that a peer sends what no leader does.
type attacked struct {
	t    *testing.T
	from *guarded // the peer's transport
	to   raft.ServerAddress
	s    *server
}

func attack(t *testing.T) *attacked {
	t.Helper()
	target, peer := listen(t, "c"), listen(t, "c")
	transport, err := target.Transport("target#1.1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer("target#1.1", nil, time.Second, transport, newMachine(func(*plan.Assignment) {}), target.cfg.Log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.raft.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	})
	return &attacked{t: t, from: open(t, peer, "peer#1.1"), to: Address("target#1.1", target.Address()), s: s}
}

func header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("peer#1.1"), Addr: []byte("peer#1.1@127.0.0.1:1")}
}

// snapshot sends a snapshot up to an index.
func (a *attacked) snapshot(index uint64) error {
	state := (&state{record: 1, assignment: &plan.Assignment{}}).encode()
	voters := raft.Configuration{Servers: []raft.Server{{ID: "peer#1.1", Address: "peer#1.1@127.0.0.1:1"}}}
	request := &raft.InstallSnapshotRequest{
		RPCHeader: header(), SnapshotVersion: raft.SnapshotVersionMax, Term: 2, Leader: header().Addr, LastLogIndex: index, LastLogTerm: 2,
		Size: int64(len(state)), Configuration: raft.EncodeConfiguration(voters), ConfigurationIndex: 1,
	}
	return a.from.InstallSnapshot("target#1.1", a.to, request, new(raft.InstallSnapshotResponse), bytes.NewReader(state))
}

// entries sends entries that follow an index, and says up to which index all is committed.
func (a *attacked) entries(after, term uint64, n int, commit uint64) error {
	request := &raft.AppendEntriesRequest{RPCHeader: header(), Term: 2, PrevLogEntry: after, PrevLogTerm: 2, LeaderCommitIndex: commit}
	for i := range n {
		request.Entries = append(request.Entries, &raft.Log{Index: after + 1 + uint64(i), Term: term, Type: raft.LogNoop})
	}
	answer := new(raft.AppendEntriesResponse)
	err := a.from.AppendEntries("target#1.1", a.to, request, answer)
	if err == nil && !answer.Success {
		err = fmt.Errorf("no success, the last entry is %d", answer.LastLog)
	}
	return err
}

// answers fails the test if Raft does not answer.
func (a *attacked) answers() {
	a.t.Helper()
	done := make(chan error, 1)
	go func() { done <- a.s.raft.VerifyLeader().Error() }()
	select {
	case <-done:
	case <-time.After(patience):
		a.t.Fatal("raft does not answer any more")
	}
}

// TestSnapshotsThatJump installs snapshots of entries that are applied already. They change nothing, however many come,
// and later commits are applied. Raft alone goes back to the snapshot, and panics at the first entry that it has not
// kept.
func TestSnapshotsThatJump(t *testing.T) {
	t.Parallel()
	a := attack(t)
	for _, index := range []uint64{100, 50, 100, 1} {
		if err := a.snapshot(index); err != nil {
			t.Errorf("snapshot up to entry %d: %v", index, err)
		}
	}
	if got := a.s.raft.AppliedIndex(); got != 100 {
		t.Errorf("applied: got %d, want 100", got)
	}
	if err := a.entries(100, 2, 5, 105); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		after, term uint64
		want        string
	}{
		{102, 1, "it was applied with term 2"},
		{0, 2, "a snapshot is in its place"},
	} {
		if err := a.entries(c.after, c.term, 1, 105); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("entry after %d of term %d: got %v, want %q", c.after, c.term, err, c.want)
		}
	}
	if err := a.entries(103, 2, 4, 107); err != nil { // two of them again
		t.Error(err)
	}
	a.answers()
}

// TestIndexesWithoutEnd checks that an index that no group reaches is refused, and that a high index costs no more than
// another. When Raft forgets entries, it counts through all indexes between them.
func TestIndexesWithoutEnd(t *testing.T) {
	t.Parallel()
	a := attack(t)
	for _, index := range []uint64{1 << 62, 1<<64 - 1} {
		if err := a.snapshot(index); err == nil || !strings.Contains(err.Error(), "the limit is") {
			t.Errorf("snapshot up to entry %d: got %v, want that it is refused", index, err)
		}
		if err := a.entries(index, 2, 0, 0); err == nil || !strings.Contains(err.Error(), "the limit is") {
			t.Errorf("nothing after entry %d: got %v, want that it is refused", index, err)
		}
	}
	if err := a.entries(0, 2, 40, 40); err != nil {
		t.Fatal(err)
	}
	const far = maxIndex - 1000
	if err := a.snapshot(far); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(10) {
		if err := a.entries(far+n*16, 2, 16, far+n*16+16); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.snapshot(maxIndex - 1); err != nil {
		t.Fatal(err)
	}
	a.answers()
}

// TestLogStore checks that the store does the same as the library's, in a time that does not follow the indexes.
func TestLogStore(t *testing.T) {
	t.Parallel()
	s := newLogStore()
	for _, from := range []uint64{1, 1 << 50} {
		for i := range uint64(3) {
			if err := s.StoreLog(&raft.Log{Index: from + i}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct{ from, to, first, last uint64 }{
		{0, 0, 1, 1<<50 + 2}, {1, 1, 2, 1<<50 + 2}, {2, 1<<50 - 1, 1 << 50, 1<<50 + 2}, {1<<50 + 2, 1 << 60, 1 << 50, 1<<50 + 1}, {0, 1<<64 - 1, 0, 0},
	} {
		if err := s.DeleteRange(c.from, c.to); err != nil {
			t.Fatal(err)
		}
		first, _ := s.FirstIndex()
		last, _ := s.LastIndex()
		if first != c.first || last != c.last {
			t.Errorf("without %d to %d: got %d to %d, want %d to %d", c.from, c.to, first, last, c.first, c.last)
		}
	}
}

// TestSilentPeersLoseTheirPlace checks that a connection that has shaken hands and then says nothing is closed. A
// server that asks for a vote over a closed connection gets the vote all the same.
func TestSilentPeersLoseTheirPlace(t *testing.T) {
	t.Parallel()
	target := listen(t, "c", func(cfg *ListenerConfig) { cfg.patience = 3 * time.Second }) // a request on a busy machine takes less
	grantVotes(t, target)
	silent, err := net.Dial("tcp", target.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := writeHandshake(silent, handshake{"c", 1, "target#1.1"}); err != nil {
		t.Fatal(err)
	}
	_ = silent.SetReadDeadline(time.Now().Add(patience))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !isReset(err) {
		t.Errorf("a silent connection: got %v, want that it is closed", err)
	}
	peer := open(t, listen(t, "c"), "peer#1.1")
	for range 2 {
		var got raft.RequestVoteResponse
		err := peer.RequestVote("target#1.1", Address("target#1.1", target.Address()), &raft.RequestVoteRequest{}, &got)
		if err != nil || !got.Granted {
			t.Errorf("got %t, %v, want the vote", got.Granted, err)
		}
		for deadline := time.Now().Add(patience); target.Called(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the connection stays")
			}
		}
	}
}

// grantVotes opens the transport of target#1.1, which grants each vote.
func grantVotes(t *testing.T, target *Listener) {
	consumer, stop := open(t, target, "target#1.1").Consumer(), make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case rpc := <-consumer:
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case <-stop:
				return
			}
		}
	}()
}

// resetConn is a connection that the peer has reset.
type resetConn struct{ net.Conn }

func (c resetConn) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// TestResetConnectionLosesNoVote checks that a request for a vote is repeated after a reset. A peer resets a connection that
// it closes before it has read the whole request.
func TestResetConnectionLosesNoVote(t *testing.T) {
	t.Parallel()
	target := listen(t, "c")
	grantVotes(t, target)
	dials := 0
	peer := open(t, listen(t, "c", func(cfg *ListenerConfig) {
		cfg.Dial = func(ctx context.Context, hostPort string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", hostPort)
			if dials++; dials == 1 && err == nil {
				conn = resetConn{conn}
			}
			return conn, err
		}
	}), "peer#1.1")
	var got raft.RequestVoteResponse
	err := peer.RequestVote("target#1.1", Address("target#1.1", target.Address()), &raft.RequestVoteRequest{}, &got)
	if err != nil || !got.Granted || dials != 2 {
		t.Errorf("got %t, %v after %d dials, want the vote over the second connection", got.Granted, err, dials)
	}
}

// TestPulse checks that Raft has hung when it takes no question for 5 ttls, and not when it misses some.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		beats := func(silent bool, n int) (hung bool) {
			for range n {
				time.Sleep(ttl / 6)
				hung = p.probe(time.Now(), ttl, func() error {
					if silent {
						time.Sleep(ttl)
						return raft.ErrEnqueueTimeout
					}
					return raft.ErrNotLeader
				})
			}
			return hung
		}
		for range 10 {
			if beats(false, 12) || beats(true, 4*6) {
				t.Fatal("one that answers now and then has hung")
			}
		}
		if !beats(true, 9*6) {
			t.Error("one that is silent has not hung")
		}
		time.Sleep(ttl) // for the last answer
	})
}

// TestHungRaftIsReplaced checks that a process whose Raft server does not answer any more says so, and follows the
// leader by another server.
func TestHungRaftIsReplaced(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		i := slices.IndexFunc(w.processes, func(p *process) bool { return !p.agent.Status().Leading })
		p := w.processes[i]
		old := p.agent.Status().Server
		w.with(func() { p.hangs = old })
		w.eventually(2*hungTTLs*ttl, "the process says that Raft has hung", func() bool { return p.agent.Status().Hung != "" })
		w.eventually(4*ttl, "another server follows a leader", func() bool {
			status := p.agent.Status()
			return status.Hung == "" && status.Server != old && status.Leader != ""
		})
		w.eventually(4*ttl, "the cluster agrees", w.agreed)
	})
}
