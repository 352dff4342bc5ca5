package rebalance

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// The Raft library trusts its peers: it panics at a configuration it cannot decode, at an
// unknown type of entry and at a gap in the log, and it keeps whatever it is sent in memory.
// The guard stands before it. What it refuses is answered with an error; Raft goes on.

// requestLimit bounds a Raft request in bytes, a snapshot included. Both are assignments,
// a few bytes a shard.
const requestLimit = 64 << 20

// guarded is a transport whose requests have been looked at.
type guarded struct {
	*raft.NetworkTransport
	requests chan raft.RPC
	closed   chan struct{}
	once     sync.Once
	ended    sync.WaitGroup
}

func guard(inner *raft.NetworkTransport) *guarded {
	g := &guarded{NetworkTransport: inner, requests: make(chan raft.RPC), closed: make(chan struct{})}
	g.ended.Go(g.pass)
	return g
}

// Consumer returns the requests that Raft can take.
func (g *guarded) Consumer() <-chan raft.RPC { return g.requests }

// Close closes the transport.
func (g *guarded) Close() error {
	g.once.Do(func() { close(g.closed) })
	g.ended.Wait()
	return g.NetworkTransport.Close()
}

func (g *guarded) pass() {
	for {
		select {
		case <-g.closed:
			return
		case rpc := <-g.NetworkTransport.Consumer():
			if err := acceptable(rpc.Command); err != nil {
				rpc.Respond(nil, err)
				continue
			}
			select {
			case g.requests <- rpc:
			case <-g.closed:
				return
			}
		}
	}
}

// acceptable names what of a request would end the process.
func acceptable(command any) error {
	switch r := command.(type) {
	case *raft.AppendEntriesRequest:
		return acceptableEntries(r)
	case *raft.InstallSnapshotRequest:
		if r.SnapshotVersion != raft.SnapshotVersionMax {
			return fmt.Errorf("raft snapshot of version %d, want %d", r.SnapshotVersion, raft.SnapshotVersionMax)
		}
		if r.Size < 0 || r.Size > requestLimit {
			return fmt.Errorf("raft snapshot of %d bytes, the limit is %d", r.Size, requestLimit)
		}
		return decodableConfiguration(r.Configuration)
	}
	return nil
}

func acceptableEntries(r *raft.AppendEntriesRequest) error {
	for i, entry := range r.Entries {
		switch {
		case entry == nil:
			return fmt.Errorf("raft entry %d of %d is missing", i+1, len(r.Entries))
		case entry.Index != r.PrevLogEntry+1+uint64(i):
			return fmt.Errorf("raft entry %d follows entry %d", entry.Index, r.PrevLogEntry+uint64(i))
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

// budget bounds what a connection may send before it is answered: a request is decoded as
// a whole before anybody sees it.
type budget struct {
	net.Conn
	read atomic.Int64
}

// Read fails once a request is longer than the limit.
func (b *budget) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if total := b.read.Add(int64(n)); total > requestLimit {
		return 0, fmt.Errorf("raft request of more than %d bytes", requestLimit)
	}
	return n, err
}

// Write answers a request: the next one may follow.
func (b *budget) Write(p []byte) (int, error) {
	b.read.Store(0)
	return b.Conn.Write(p)
}
