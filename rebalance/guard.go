package rebalance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// The Raft library trusts its peers: it panics at a configuration it cannot decode, at an unknown type of entry, and at
// an entry that is committed and not there; it waits for a snapshot for as long as its sender likes, keeps whatever it is
// sent in memory, and counts on from any index. The guard stands before it, looks at one request at a time, and passes the
// next one on when Raft has answered the one before: what it compares a request with does not change meanwhile. What it
// refuses is answered with an error; Raft goes on.

const (
	// requestLimit bounds a Raft request in bytes, a snapshot included. Both are assignments,
	// a few bytes a shard.
	requestLimit = 64 << 20
	// requestPatience is how long a connection may take to send its next request. A leader sends several in a second;
	// connections that waited to be used for longer are dialled again.
	requestPatience = time.Minute
	// mostIndex bounds indexes and terms: no group gets that far, and a number behind it may be counted.
	mostIndex = 1 << 48
)

// guarded is a transport whose requests have been looked at.
type guarded struct {
	*raft.NetworkTransport
	requests  chan raft.RPC
	closed    chan struct{}
	once      sync.Once
	ended     sync.WaitGroup
	server    atomic.Pointer[known] // nil until there is one: it has applied nothing
	turn      sync.Mutex            // one request at a time
	snapshots chan struct{}         // has a value while a snapshot is in memory: one at a time
}

// known is what the guard knows of its server.
type known struct {
	raft *raft.Raft
	log  raft.LogStore
}

func guard(inner *raft.NetworkTransport) *guarded {
	g := &guarded{NetworkTransport: inner, requests: make(chan raft.RPC), closed: make(chan struct{}), snapshots: make(chan struct{}, 1)}
	g.ended.Go(g.pass)
	return g
}

// serves tells the guard which server has the transport.
func (g *guarded) serves(r *raft.Raft, log raft.LogStore) { g.server.Store(&known{r, log}) }

// Consumer returns the requests that Raft can take.
func (g *guarded) Consumer() <-chan raft.RPC { return g.requests }

// Close closes the transport.
func (g *guarded) Close() error {
	g.once.Do(func() { close(g.closed) })
	err := g.NetworkTransport.Close() // and its connections, of which a snapshot may be read
	g.ended.Wait()
	return err
}

// SetHeartbeatHandler has heartbeats, which do not wait for their turn, looked at, too.
func (g *guarded) SetHeartbeatHandler(handle func(raft.RPC)) {
	g.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if err := acceptable(rpc.Command); err != nil {
			rpc.Respond(nil, err)
			return
		}
		handle(rpc)
	})
}

func (g *guarded) pass() {
	for {
		select {
		case <-g.closed:
			return
		case rpc := <-g.NetworkTransport.Consumer():
			if _, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
				g.ended.Go(func() { g.passSnapshot(rpc) })
				continue
			}
			g.passOne(rpc)
		}
	}
}

// passSnapshot reads a snapshot before its turn, so that nobody waits for its sender.
func (g *guarded) passSnapshot(rpc raft.RPC) {
	if err := acceptable(rpc.Command); err != nil {
		rpc.Respond(nil, err) // what follows is no request: the connection ends
		return
	}
	select {
	case g.snapshots <- struct{}{}:
	case <-g.closed:
		return
	case <-time.After(dialTimeout):
		_, _ = io.Copy(io.Discard, rpc.Reader) // the next request is behind it
		rpc.Respond(nil, errors.New("raft snapshot: another one is being read"))
		return
	}
	defer func() { <-g.snapshots }()
	data, err := io.ReadAll(rpc.Reader)
	if err != nil {
		rpc.Respond(nil, fmt.Errorf("read raft snapshot: %w", err))
		return
	}
	rpc.Reader = bytes.NewReader(data)
	g.passOne(rpc)
}

// passOne looks at a request, and waits for Raft's answer to it.
func (g *guarded) passOne(rpc raft.RPC) {
	g.turn.Lock()
	defer g.turn.Unlock()
	err := acceptable(rpc.Command)
	var nothingNew any
	if server := g.server.Load(); err == nil && server != nil {
		nothingNew, err = server.knows(rpc.Command)
	}
	if err != nil || nothingNew != nil {
		rpc.Respond(nothingNew, err)
		return
	}
	answer := make(chan raft.RPCResponse, 1)
	passed := rpc
	passed.RespChan = answer
	select {
	case g.requests <- passed:
	case <-g.closed:
		return
	}
	select {
	case got := <-answer:
		rpc.RespChan <- got // it has room
	case <-g.closed:
	}
}

// RequestVote asks another server for its vote.
func (g *guarded) RequestVote(id raft.ServerID, at raft.ServerAddress, ask *raft.RequestVoteRequest, answer *raft.RequestVoteResponse) error {
	return g.ask(func() error { return g.NetworkTransport.RequestVote(id, at, ask, answer) }, &answer.Term)
}

// RequestPreVote asks another server whether it would give its vote.
func (g *guarded) RequestPreVote(id raft.ServerID, at raft.ServerAddress, ask *raft.RequestPreVoteRequest, answer *raft.RequestPreVoteResponse) error {
	return g.ask(func() error { return g.NetworkTransport.RequestPreVote(id, at, ask, answer) }, &answer.Term)
}

// ask repeats what is asked over connections that the other side has closed because they were not used. An election
// that lost its votes that way would be over.
func (g *guarded) ask(once func() error, term *uint64) error {
	err := once()
	for range maxPool {
		if !hungUp(err) {
			break
		}
		err = once()
	}
	if err == nil && *term > mostIndex {
		return fmt.Errorf("raft answer of term %d, the limit is %d", *term, uint64(mostIndex))
	}
	return err
}

// hungUp reports whether the other side has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// acceptable names what of a request would end the process, or keep it busy for ever.
func acceptable(command any) error {
	var numbers []uint64
	var err error
	switch r := command.(type) {
	case *raft.AppendEntriesRequest:
		numbers = []uint64{r.Term, r.PrevLogEntry, r.PrevLogTerm}
		err = acceptableEntries(r)
	case *raft.InstallSnapshotRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm, r.ConfigurationIndex}
		err = acceptableSnapshot(r)
	case *raft.RequestVoteRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm}
	case *raft.RequestPreVoteRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm}
	}
	for _, n := range numbers {
		if n > mostIndex {
			return fmt.Errorf("raft request with an index or a term of %d, the limit is %d", n, uint64(mostIndex))
		}
	}
	return err
}

func acceptableSnapshot(r *raft.InstallSnapshotRequest) error {
	if r.SnapshotVersion != raft.SnapshotVersionMax {
		return fmt.Errorf("raft snapshot of version %d, want %d", r.SnapshotVersion, raft.SnapshotVersionMax)
	}
	if r.Size < 0 || r.Size > requestLimit {
		return fmt.Errorf("raft snapshot of %d bytes, the limit is %d", r.Size, requestLimit)
	}
	return decodableConfiguration(r.Configuration)
}

func acceptableEntries(r *raft.AppendEntriesRequest) error {
	for i, entry := range r.Entries {
		switch {
		case entry == nil:
			return fmt.Errorf("raft entry %d of %d is missing", i+1, len(r.Entries))
		case entry.Index != r.PrevLogEntry+1+uint64(i):
			return fmt.Errorf("raft entry %d follows entry %d", entry.Index, r.PrevLogEntry+uint64(i))
		case entry.Term > mostIndex:
			return fmt.Errorf("raft entry %d is of term %d, the limit is %d", entry.Index, entry.Term, uint64(mostIndex))
		}
		switch entry.Type {
		case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		case raft.LogConfiguration:
			if err := decodableConfiguration(entry.Data); err != nil {
				return fmt.Errorf("raft entry %d: %w", entry.Index, err)
			}
		default:
			return fmt.Errorf("raft entry %d is of unknown type %d", entry.Index, entry.Type)
		}
	}
	return nil
}

// knows compares a request with what the server has applied, which is committed and never changes. It returns the answer
// to a request that says nothing new, and an error for one that says something else.
func (k *known) knows(command any) (answer any, err error) {
	applied := k.raft.AppliedIndex()
	switch r := command.(type) {
	case *raft.InstallSnapshotRequest:
		// Raft would go back to it, and apply entries again that it has not kept.
		if term := k.raft.CurrentTerm(); r.LastLogIndex <= applied && r.Term >= term {
			return &raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term, Success: true}, nil
		}
	case *raft.AppendEntriesRequest:
		for _, entry := range r.Entries {
			if entry.Index > applied {
				break
			}
			if err := k.agrees(entry, r.PrevLogEntry, applied); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// agrees says how an entry that has been applied differs from what the log has at its index. Raft itself answers to one
// that follows an entry which is not in the log any more.
func (k *known) agrees(entry *raft.Log, after, applied uint64) error {
	var have raft.Log
	if k.log.GetLog(entry.Index, &have) == nil {
		if have.Term != entry.Term {
			return fmt.Errorf("raft entry %d of term %d: it was applied with term %d", entry.Index, entry.Term, have.Term)
		}
		return nil
	}
	if after == 0 || k.log.GetLog(after, &have) == nil {
		return fmt.Errorf("raft entry %d follows entry %d: a snapshot is in its place, and entries up to %d were applied", entry.Index, after, applied)
	}
	return nil
}

// decodableConfiguration decodes as Raft will.
func decodableConfiguration(data []byte) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("raft configuration of %d bytes: %v", len(data), why)
		}
	}()
	raft.DecodeConfiguration(data)
	return nil
}

// boundedConn bounds what a connection may send before it is answered, and how long that may take: a request is decoded
// as a whole before the guard sees it.
type boundedConn struct {
	net.Conn
	limit    int64
	patience time.Duration
	read     atomic.Int64
}

func newBoundedConn(conn net.Conn, limit int64, patience time.Duration) *boundedConn {
	c := &boundedConn{Conn: conn, limit: limit, patience: patience}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	return c
}

// Read fails once a request is longer than the limit, or was not there in time.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if total := c.read.Add(int64(n)); total > c.limit {
		return 0, fmt.Errorf("raft request of more than %d bytes", c.limit)
	}
	return n, err
}

// Write answers a request: the next one may follow.
func (c *boundedConn) Write(p []byte) (int, error) {
	c.read.Store(0)
	_ = c.SetReadDeadline(time.Now().Add(c.patience))
	return c.Conn.Write(p)
}
