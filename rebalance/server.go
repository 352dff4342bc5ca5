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
	firstElection = time.Second     // election timeout of a server that bootstraps and has no other to wait for
	applyTimeout  = 2 * time.Second // maximum time until Raft accepts an entry into its log
	// commitTimeout is how often an idle leader tells its followers which entries are committed. These messages
	// are the main cost of an idle leader. Agent.commitEntry has a faster way for assignments.
	commitTimeout = 500 * time.Millisecond
	// An entry may be a whole assignment, so the log keeps only some entries beside the snapshot.
	snapshotEvery    = 64
	snapshotInterval = 30 * time.Second
	trailingLogs     = 16
	// shutdownTimeout bounds the wait for a server to stop. Raft stops at once unless it has hung.
	shutdownTimeout = 2 * time.Second
	appendEntries   = 16 // maximum entries in a request, which keeps it far below requestLimit
)

// server is a Raft server with an id and a log in memory. It is never restarted. A
// process that drops its server starts another server under another id.
type server struct {
	id        string
	raft      *raft.Raft
	machine   *machine
	transport raft.Transport
	// election is the timeout of elections after the first.
	election time.Duration
}

// electionTimeout returns the time without a heartbeat before a follower starts an election, and the
// time that an election may take. It is a third of the lease's ttl, between 1 and 2 s, so that a new leader
// exists before the shards of the old leader may be seized.
func electionTimeout(ttl time.Duration) time.Duration {
	return min(max(ttl/3, time.Second), 2*time.Second)
}

// startServer replaces the process's Raft server. With voters it bootstraps the group.
// Without voters the server waits to be added.
func (a *Agent) startServer(id string, voters []string) error {
	a.dropServer()
	transport, err := a.cfg.Transport(id)
	if err != nil {
		return fmt.Errorf("start raft server %s: %w", id, err)
	}
	m := newMachine(a.publishAssignment)
	m.stopped, m.refuse = a.Wake, a.cfg.refuse
	s, err := newServer(id, voters, electionTimeout(a.cfg.TTL), transport, m, a.log)
	if err != nil {
		return err
	}
	a.server = s
	a.log.Info("raft server started", "server", id, "bootstraps", len(voters) > 0)
	return nil
}

// dropServer stops the process's Raft server. If the server does not stop in time, dropServer closes its transport and leaves
// it alone. That is safe because its id never comes back.
func (a *Agent) dropServer() {
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
	// A leader that is cut off from its voters steps down in half the time before they elect another leader.
	conf.LeaderLeaseTimeout, conf.CommitTimeout = election/2, commitTimeout
	conf.MaxAppendEntries = appendEntries
	conf.SnapshotThreshold, conf.SnapshotInterval, conf.TrailingLogs = snapshotEvery, snapshotInterval, trailingLogs
	conf.ShutdownOnRemove = false // only the agent stops its server
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
		guarded.setServer(r, entries)
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

// leaderID returns the id of the group's leader, "" if it knows no leader.
func (s *server) leaderID() string {
	_, id := s.raft.LeaderWithID()
	return string(id)
}

// changeConfiguration begins a step of the Raft configuration.
func (s *server) changeConfiguration(c change, timeout time.Duration) raft.Future {
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

// giveUpVote transfers leadership to another voter, if any, and waits until this server has no vote, so
// that the remaining voters keep their quorum.
func (s *server) giveUpVote(ctx context.Context) {
	for {
		voters, err := s.voters()
		if err != nil || len(voters) < 2 || !slices.Contains(voters, s.id) {
			return
		}
		if s.raft.State() == raft.Leader {
			_ = boundTransfer(ctx, s.raft.LeadershipTransfer) // the loop tries again until the time is up
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// boundTransfer waits for a leadership transfer until ctx is done. The transfer itself
// ends at the latest when the server shuts down.
func boundTransfer(ctx context.Context, begin func() raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- begin().Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Address returns the address of a server in its group, which consists of its id and
// the host and port of its listener. So two servers of a process never share an address.
func Address(server, hostPort string) raft.ServerAddress {
	return raft.ServerAddress(server + "@" + hostPort)
}

// splitAddress returns the parts of an address made by Address.
func splitAddress(address raft.ServerAddress) (server, hostPort string, ok bool) {
	return strings.Cut(string(address), "@")
}

// raftLogger passes the library's log on at debug level. The agent itself logs the events that an
// operator would act on.
func raftLogger(log *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, DisableTime: true, Output: lineLog{log}})
}

type lineLog struct{ log *slog.Logger }

var _ io.Writer = lineLog{}

func (l lineLog) Write(line []byte) (int, error) {
	l.log.Debug("raft", "line", strings.TrimSpace(string(line)))
	return len(line), nil
}
