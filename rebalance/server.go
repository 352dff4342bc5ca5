package rebalance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	firstElection = time.Second     // for a server that bootstraps: it has no other to wait for
	applyTimeout  = 2 * time.Second // for an entry to be taken into the log, at most
	// An idle leader tells each follower what is committed about this often, which costs
	// more than all else it does. What must be known at once has an entry after it; see
	// Agent.commit.
	commitTimeout = 500 * time.Millisecond
	// Entries may be whole assignments, so few of them are kept beside the snapshot.
	snapshotEvery    = 64
	snapshotInterval = 30 * time.Second
	trailingLogs     = 16
	// shutdownTimeout is how long a server may take to stop. Raft stops at once, unless something has hung.
	shutdownTimeout = 2 * time.Second
	appendEntries   = 16 // in one request, which is far below requestLimit then
)

// server is one Raft server: one id, one log in memory. It is never restarted; a
// process that drops it starts another one under another id.
type server struct {
	id        string
	raft      *raft.Raft
	machine   *machine
	transport raft.Transport
	// election is the timeout of elections, once the first is over.
	election time.Duration
}

// electionTimeout is after how long without a heartbeat a follower stands for election, and
// how long an election may take. It follows the lease's ttl, so that a leader's successor
// is there before its shards may be seized, between 1 and 2 s.
func electionTimeout(ttl time.Duration) time.Duration {
	return min(max(ttl/3, time.Second), 2*time.Second)
}

// start replaces the process's Raft server. With voters it bootstraps the group,
// else it waits to be added.
func (a *Agent) start(id string, voters []string) error {
	a.drop()
	transport, err := a.cfg.Transport(id)
	if err != nil {
		return fmt.Errorf("start raft server %s: %w", id, err)
	}
	m := newMachine(a.publish)
	m.stopped, m.refuse = a.Wake, a.cfg.refuse
	s, err := newServer(id, voters, electionTimeout(a.cfg.TTL), transport, m, a.log)
	if err != nil {
		return err
	}
	a.server = s
	a.log.Info("raft server started", "server", id, "bootstraps", len(voters) > 0)
	return nil
}

// drop stops the process's Raft server for good. One that does not stop is left alone: its address is closed, and its id
// never comes back.
func (a *Agent) drop() {
	if a.server == nil {
		return
	}
	dropped := a.server
	a.server, a.term, a.pending, a.pulse = nil, nil, pending{}, pulse{}
	stopped := make(chan error, 1)
	go func() { stopped <- dropped.raft.Shutdown().Error() }()
	timer := time.NewTimer(shutdownTimeout)
	defer timer.Stop()
	err := fmt.Errorf("it does not stop within %s", shutdownTimeout)
	select {
	case err = <-stopped:
	case <-timer.C:
		if transport, ok := dropped.transport.(raft.WithClose); ok {
			err = errors.Join(err, transport.Close())
		}
	}
	if err != nil {
		a.log.Error("raft shutdown", "server", dropped.id, "err", err)
	}
}

func newServer(id string, voters []string, election time.Duration, transport raft.Transport, m *machine, log *slog.Logger) (*server, error) {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id)
	conf.HeartbeatTimeout, conf.ElectionTimeout = election, election
	// A leader cut off from its voters steps down within half the time they wait for it.
	conf.LeaderLeaseTimeout, conf.CommitTimeout = election/2, commitTimeout
	conf.MaxAppendEntries = appendEntries
	conf.SnapshotThreshold, conf.SnapshotInterval, conf.TrailingLogs = snapshotEvery, snapshotInterval, trailingLogs
	conf.ShutdownOnRemove = false // the agent alone stops its server
	conf.Logger = raftLogger(log)
	entries, store, snapshots := newLogStore(), raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	if len(voters) > 0 {
		conf.HeartbeatTimeout, conf.ElectionTimeout = firstElection, firstElection
		first := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: transport.LocalAddr()}}}
		if err := raft.BootstrapCluster(conf, entries, store, snapshots, transport, first); err != nil {
			return nil, fmt.Errorf("bootstrap raft server %s: %w", id, err)
		}
	}
	r, err := raft.NewRaft(conf, m, entries, store, snapshots, transport)
	if err != nil {
		return nil, fmt.Errorf("start raft server %s: %w", id, err)
	}
	if guarded, ok := transport.(*guarded); ok {
		guarded.serves(r, entries)
	}
	return &server{id: id, raft: r, machine: m, transport: transport, election: election}, nil
}

// usualTimeouts sets the usual timeouts once a bootstrapped server leads.
func (s *server) usualTimeouts() error {
	conf := s.raft.ReloadableConfig()
	if conf.ElectionTimeout == s.election {
		return nil
	}
	conf.HeartbeatTimeout, conf.ElectionTimeout = s.election, s.election
	if err := s.raft.ReloadConfig(conf); err != nil {
		return fmt.Errorf("set raft timeouts: %w", err)
	}
	return nil
}

// servers returns the current configuration.
func (s *server) servers() ([]raft.Server, error) {
	f := s.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("read raft configuration: %w", err)
	}
	return f.Configuration().Servers, nil
}

func (s *server) voters() ([]string, error) {
	servers, err := s.servers()
	return voterIDs(servers), err
}

// leader returns the id of the leader it follows or is, "" if it knows none.
func (s *server) leader() string {
	_, id := s.raft.LeaderWithID()
	return string(id)
}

// change begins one step of the Raft configuration.
func (s *server) change(c change, timeout time.Duration) raft.Future {
	id := raft.ServerID(c.server)
	switch c.kind {
	case addServer:
		return s.raft.AddNonvoter(id, Address(c.server, c.peer.Address), 0, timeout)
	case promote:
		return s.raft.AddVoter(id, Address(c.server, c.peer.Address), 0, timeout)
	case demote:
		return s.raft.DemoteVoter(id, 0, timeout)
	default:
		return s.raft.RemoveServer(id, 0, timeout)
	}
}

// leave gives leadership to another voter, if there is one, and waits until this
// server is no voter any more, so that those that stay keep their quorum.
func (s *server) leave(ctx context.Context) {
	for {
		voters, err := s.voters()
		if err != nil || len(voters) < 2 || !slices.Contains(voters, s.id) {
			return
		}
		if s.raft.State() == raft.Leader {
			_ = transfer(ctx, s.raft.LeadershipTransfer) // tried again until the time is up
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// transfer bounds the library's leadership transfer by ctx; the transfer itself
// ends at the latest when the server is shut down.
func transfer(ctx context.Context, begin func() raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- begin().Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Address returns the address under which the group knows a server: its id and
// where it listens. Two servers of one process then never share an address.
func Address(server, hostPort string) raft.ServerAddress {
	return raft.ServerAddress(server + "@" + hostPort)
}

// splitAddress undoes Address.
func splitAddress(address raft.ServerAddress) (server, hostPort string, ok bool) {
	return strings.Cut(string(address), "@")
}

// raftLogger passes the library's log on at debug level: what an operator would act
// on is logged by the agent.
func raftLogger(log *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, DisableTime: true, Output: lineLog{log}})
}

type lineLog struct{ log *slog.Logger }

var _ io.Writer = lineLog{}

func (l lineLog) Write(line []byte) (int, error) {
	l.log.Debug("raft", "line", strings.TrimSpace(string(line)))
	return len(line), nil
}
