package rebalance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// The Raft library trusts its peers. It panics when it cannot decode a configuration, when it does not know the type of an
// entry, and when a committed entry is missing from its log. It waits for a snapshot without a deadline, keeps everything that
// a peer sends in memory, and continues counting from any index.
//
// The guard checks each request before Raft sees it. It passes on the next request only after Raft has answered the last, so
// that the state it compares a request with does not change meanwhile. It answers a refused request with an error, and Raft
// continues.

const (
	// requestLimit bounds a Raft request, a snapshot included, in bytes. An assignment takes some bytes per shard.
	requestLimit = 64 << 20
	// requestPatience is the time within which a connection must send its next request. A leader sends several per second.
	// A peer dials again if its pooled connection was idle for longer.
	requestPatience = time.Minute
	// maxIndex bounds indexes and terms. No group reaches it, and Raft can add to any number below it.
	maxIndex = 1 << 48
)

// guarded is a transport that delivers only requests that have passed the checks.
type guarded struct {
	*raft.NetworkTransport
	requests  chan raft.RPC
	closed    chan struct{}
	once      sync.Once
	ended     sync.WaitGroup
	server    atomic.Pointer[appliedLog] // nil until the server starts
	turn      sync.Mutex                 // held while Raft answers a request
	snapshots chan struct{}              // holds a value while a snapshot is in memory, so that there is one at a time
}

// appliedLog is the log of the server that the transport belongs to.
type appliedLog struct {
	raft *raft.Raft
	log  raft.LogStore
}

// newGuarded starts to check the requests of inner. Close ends it.
func newGuarded(inner *raft.NetworkTransport) *guarded {
	g := &guarded{NetworkTransport: inner, requests: make(chan raft.RPC), closed: make(chan struct{}), snapshots: make(chan struct{}, 1)}
	g.ended.Go(g.passRequests)
	return g
}

// setServer sets the server that the requests are for, and its log.
func (g *guarded) setServer(r *raft.Raft, log raft.LogStore) { g.server.Store(&appliedLog{r, log}) }

// Consumer returns the channel of requests that have passed the checks.
func (g *guarded) Consumer() <-chan raft.RPC { return g.requests }

// Close closes the transport.
func (g *guarded) Close() error {
	g.once.Do(func() { close(g.closed) })
	err := g.NetworkTransport.Close() // and its connections, so that no read of a snapshot goes on
	g.ended.Wait()
	return err
}

// SetHeartbeatHandler checks heartbeats as well. They do not wait for the request before them.
func (g *guarded) SetHeartbeatHandler(handle func(raft.RPC)) {
	g.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if err := checkRequest(rpc.Command); err != nil {
			rpc.Respond(nil, err)
			return
		}
		handle(rpc)
	})
}

func (g *guarded) passRequests() {
	for {
		select {
		case <-g.closed:
			return
		case rpc := <-g.NetworkTransport.Consumer():
			if _, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
				g.ended.Go(func() { g.passSnapshot(rpc) })
				continue
			}
			g.passRequest(rpc)
		}
	}
}

// passSnapshot reads the whole snapshot before it takes its turn, so that no request waits for the sender of a snapshot.
func (g *guarded) passSnapshot(rpc raft.RPC) {
	if err := checkRequest(rpc.Command); err != nil {
		rpc.Respond(nil, err) // the snapshot itself follows and is not read, so the connection ends
		return
	}
	select {
	case g.snapshots <- struct{}{}:
	case <-g.closed:
		return
	case <-time.After(dialTimeout):
		_, _ = io.Copy(io.Discard, rpc.Reader) // the next request of the connection follows it
		rpc.Respond(nil, errors.New("raft snapshot: another snapshot is being read"))
		return
	}
	defer func() { <-g.snapshots }()
	data, err := io.ReadAll(rpc.Reader)
	if err != nil {
		rpc.Respond(nil, fmt.Errorf("read raft snapshot: %w", err))
		return
	}
	rpc.Reader = bytes.NewReader(data)
	g.passRequest(rpc)
}

// passRequest checks a request, passes it to Raft and waits for the answer.
func (g *guarded) passRequest(rpc raft.RPC) {
	g.turn.Lock()
	defer g.turn.Unlock()
	err := checkRequest(rpc.Command)
	var nothingNew any
	if server := g.server.Load(); err == nil && server != nil {
		nothingNew, err = server.compareRequest(rpc.Command)
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
	return g.retryClosed(func() error { return g.NetworkTransport.RequestVote(id, at, ask, answer) }, &answer.Term)
}

// RequestPreVote asks another server whether it would vote for this server.
func (g *guarded) RequestPreVote(id raft.ServerID, at raft.ServerAddress, ask *raft.RequestPreVoteRequest, answer *raft.RequestPreVoteResponse) error {
	return g.retryClosed(func() error { return g.NetworkTransport.RequestPreVote(id, at, ask, answer) }, &answer.Term)
}

// retryClosed repeats a request if the peer has closed the pooled connection because it was idle. Without the repeat an
// election would lose the vote. It returns an error for an answer with a term above maxIndex.
func (g *guarded) retryClosed(once func() error, term *uint64) error {
	err := once()
	for range maxPool {
		if !isClosedByPeer(err) {
			break
		}
		err = once()
	}
	if err == nil && *term > maxIndex {
		return fmt.Errorf("raft answer of term %d, the limit is %d", *term, uint64(maxIndex))
	}
	return err
}

// isClosedByPeer reports whether err is of a connection that the peer has closed. Raft's decoder keeps only the text of an
// error, except for io.EOF.
func isClosedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) ||
		err != nil && strings.HasSuffix(err.Error(), syscall.ECONNRESET.Error())
}

// checkRequest returns an error if the request would end the process or keep it busy without end.
func checkRequest(command any) error {
	var numbers []uint64
	var err error
	switch r := command.(type) {
	case *raft.AppendEntriesRequest:
		numbers = []uint64{r.Term, r.PrevLogEntry, r.PrevLogTerm}
		err = checkEntries(r)
	case *raft.InstallSnapshotRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm, r.ConfigurationIndex}
		err = checkSnapshot(r)
	case *raft.RequestVoteRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm}
	case *raft.RequestPreVoteRequest:
		numbers = []uint64{r.Term, r.LastLogIndex, r.LastLogTerm}
	}
	for _, n := range numbers {
		if n > maxIndex {
			return fmt.Errorf("raft request with an index or a term of %d, the limit is %d", n, uint64(maxIndex))
		}
	}
	return err
}

func checkSnapshot(r *raft.InstallSnapshotRequest) error {
	if r.SnapshotVersion != raft.SnapshotVersionMax {
		return fmt.Errorf("raft snapshot of version %d, want %d", r.SnapshotVersion, raft.SnapshotVersionMax)
	}
	if r.Size < 0 || r.Size > requestLimit {
		return fmt.Errorf("raft snapshot of %d bytes, the limit is %d", r.Size, requestLimit)
	}
	return checkConfiguration(r.Configuration)
}

func checkEntries(r *raft.AppendEntriesRequest) error {
	for i, entry := range r.Entries {
		switch {
		case entry == nil:
			return fmt.Errorf("raft entry %d of %d is missing", i+1, len(r.Entries))
		case entry.Index != r.PrevLogEntry+1+uint64(i):
			return fmt.Errorf("raft entry %d follows entry %d", entry.Index, r.PrevLogEntry+uint64(i))
		case entry.Term > maxIndex:
			return fmt.Errorf("raft entry %d is of term %d, the limit is %d", entry.Index, entry.Term, uint64(maxIndex))
		}
		switch entry.Type {
		case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		case raft.LogConfiguration:
			if err := checkConfiguration(entry.Data); err != nil {
				return fmt.Errorf("raft entry %d: %w", entry.Index, err)
			}
		default:
			return fmt.Errorf("raft entry %d is of unknown type %d", entry.Index, entry.Type)
		}
	}
	return nil
}

// compareRequest compares a request with the entries that the server has applied. These are committed and never change.
// It returns the answer to a request that contains nothing new, and an error if an entry contradicts an applied entry.
func (k *appliedLog) compareRequest(command any) (answer any, err error) {
	applied := k.raft.AppliedIndex()
	switch r := command.(type) {
	case *raft.InstallSnapshotRequest:
		// Raft would restore this older state, and would then apply entries that its log does not keep.
		if term := k.raft.CurrentTerm(); r.LastLogIndex <= applied && r.Term >= term {
			return &raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term, Success: true}, nil
		}
	case *raft.AppendEntriesRequest:
		for _, entry := range r.Entries {
			if entry.Index > applied {
				break
			}
			if err := k.compareEntry(entry, r.PrevLogEntry, applied); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// compareEntry returns an error if the log has another entry at the index of an applied entry. If a snapshot has replaced the
// log's entry, it returns an error where Raft would append the entry again. Raft itself refuses an entry that follows an entry
// missing from its log.
func (k *appliedLog) compareEntry(entry *raft.Log, after, applied uint64) error {
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

// checkConfiguration returns an error if Raft would panic when it decodes the configuration.
func checkConfiguration(data []byte) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("raft configuration of %d bytes: %v", len(data), why)
		}
	}()
	raft.DecodeConfiguration(data)
	return nil
}

// boundedConn bounds the size of a request and the time until it has arrived. The library decodes a whole request before
// the guard sees it.
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

// Read returns an error when the request exceeds the limit or misses the deadline.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if total := c.read.Add(int64(n)); total > c.limit {
		return 0, fmt.Errorf("raft request of more than %d bytes", c.limit)
	}
	return n, err
}

// Write answers a request, so the count and the deadline begin again for the next request.
func (c *boundedConn) Write(p []byte) (int, error) {
	c.read.Store(0)
	_ = c.SetReadDeadline(time.Now().Add(c.patience))
	return c.Conn.Write(p)
}
