//go:build linux

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

const (
	ttl = 3 * time.Second // the least that a node allows
	// calmTTL is for tests in which no lease is to run out, and shows when one had to.
	calmTTL = time.Minute
	// queueName is the queue of every test.
	queueName = "history"
)

// settings are what a worker process is told.
type settings struct {
	Name    string // of the node
	Redis   string
	History string

	Shards      int
	Concurrency int           // default 8
	MaxCrashes  int           // as in node.QueueConfig
	Handler     string        // work, count, ledger, poison, stubborn, gate, exec, http
	Work        time.Duration // of one handler call
	Argv        []string      // exec
	Processes   int           // exec
	URL         string        // http
	Limit       rules.Limit   // of the cluster
	Held        bool          // groups, expiry and a journal of all runs, too: see holdBack
	Journal     bool          // a line of each run is kept
	Broken      string        // a queue whose handler is Argv as an exec handler, whatever the others' is

	Cluster   string
	TTL       time.Duration // default ttl
	Bind      string        // gossip; empty = no cluster
	Of        int           // of a static node
	Number    int           // of a static node
	Split     []int         // the shards of a static node with a Splitter
	Advertise string
	Join      []string
	GossipKey string
	HTTP      string
	Queues    []string // default queueName alone
	Insecure  bool     // a host of its own, without keys
	Recurring map[string]recurring.Spec
}

// work is a worker process: a node until SIGTERM.
func work() error {
	var s settings
	if err := json.Unmarshal([]byte(os.Getenv(settingsEnv)), &s); err != nil {
		return err
	}
	writer, err := judge.Open(s.History)
	if err != nil {
		return err
	}
	defer writer.Close()
	n, err := s.node(writer)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return n.Run(ctx)
}

func (s *settings) node(writer *judge.Writer) (*node.Node, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	slog.SetDefault(log)
	cfg := node.Config{
		Name: s.Name, Redis: s.Redis, Cluster: s.Cluster, Concurrency: s.Concurrency, TTL: cmp.Or(s.TTL, ttl),
		ShutdownTimeout: 5 * time.Second, Bind: s.Bind, Advertise: s.Advertise, Join: s.Join, Log: log,
		Insecure: s.Insecure, Recurring: s.Recurring, Of: s.Of, Number: s.Number,
	}
	if len(s.Split) > 0 {
		cfg.Splitter = s.split
	}
	if s.GossipKey != "" {
		cfg.GossipKeys = [][]byte{[]byte(s.GossipKey)}
	}
	n, err := node.New(cfg)
	if err != nil {
		return nil, err
	}
	if s.HTTP != "" {
		served := web.Config{Address: s.HTTP, Advertise: s.Advertise, Insecure: s.Insecure, Pages: dashboard.New, Log: log}
		if err := web.Serve(n, served); err != nil {
			return nil, err
		}
	}
	middlewares := []node.Middleware{report()}
	if s.Handler != "exec" && s.Handler != "http" { // these write their history where the work is done
		middlewares = append(middlewares, func(next lowkiq.Handler) lowkiq.Handler { return judge.Wrap(writer, next) })
	}
	queues := s.Queues
	if len(queues) == 0 {
		queues = []string{queueName}
	}
	for _, name := range queues {
		own := *s
		if name == s.Broken {
			own.Handler = "exec"
		}
		inner, err := own.handler(log)
		if err != nil {
			return nil, err
		}
		cfg := node.QueueConfig{Name: name, Shards: s.Shards, Rules: rules.Rules{MaxCrashes: s.MaxCrashes}, Middlewares: middlewares}
		if s.Handler == "count" || s.Handler == "ledger" {
			cfg.State, cfg.BatchSize, cfg.RetryFunc = time.Hour, 10, func(int) time.Duration { return time.Millisecond }
		}
		cfg.Limit = s.Limit
		if s.Held {
			holdBack(&cfg)
		}
		if s.Journal {
			cfg.Journal = rules.Journal{Runs: rules.JournalAll, Keep: 1_000_000}
		}
		if name == s.Broken {
			cfg.Middlewares = cfg.Middlewares[:1]
		}
		if err := n.Handle(cfg, inner); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// split names shards by their index. Some may not be there.
func (s *settings) split([]lowkiq.Shard) (own []lowkiq.Shard) {
	for _, i := range s.Split {
		own = append(own, lowkiq.Shard{Queue: queueName, Index: i})
	}
	return own
}

func (s *settings) handler(log *slog.Logger) (lowkiq.Handler, error) {
	switch s.Handler {
	case "exec":
		return handler.NewExec(handler.ExecConfig{Argv: s.Argv, Processes: s.Processes, Env: []string{roleEnv + "=child"}, Log: log})
	case "http":
		return handler.NewHTTP(handler.HTTPConfig{URL: s.URL})
	case "poison":
		return lowkiq.HandlerFunc(s.poisoned), nil
	case "stubborn":
		return lowkiq.HandlerFunc(stubborn), nil
	case "gate":
		return lowkiq.HandlerFunc(gate), nil
	case "count":
		return lowkiq.HandlerFunc(s.count), nil
	case "ledger":
		return lowkiq.HandlerFunc(s.enter), nil
	case "work":
		return lowkiq.HandlerFunc(s.pretend), nil
	}
	return nil, fmt.Errorf("no handler %q", s.Handler)
}

// longID begins the ids whose handler takes longer than a lease lives unrenewed.
const longID = "long"

// pretend takes a moment, so that faults find work in flight.
func (s *settings) pretend(ctx context.Context, batch *lowkiq.Batch) error {
	took := s.Work
	if strings.HasPrefix(batch.Jobs[0].ID, longID) {
		took = 3 * ttl
	}
	return sleep.For(ctx, took)
}

// count counts payloads in the states of their ids, which is all it does, and answers with the count.
// One job in eight fails after that.
func (s *settings) count(ctx context.Context, batch *lowkiq.Batch) error {
	failed := lowkiq.Failed{}
	for _, job := range batch.Jobs {
		before, _ := strconv.Atoi(string(job.State))
		count := []byte(strconv.Itoa(before + len(job.Payloads)))
		batch.Answer(job.ID).State(count).Result(count)
		if rand.IntN(8) == 0 {
			failed[job.ID] = errors.New("after it has counted")
		}
	}
	if err := s.pretend(ctx, batch); err != nil || len(failed) == 0 {
		return err
	}
	return failed
}

// ledger is the queue whose ids keep their payloads in their states, in the order of their arrival.
const ledger = "ledger"

// enter passes each payload on to its id in the ledger, by a follow-up, or writes it there. One job in eight fails after that.
func (s *settings) enter(ctx context.Context, batch *lowkiq.Batch) error {
	failed := lowkiq.Failed{}
	for _, job := range batch.Jobs {
		answer, state := batch.Answer(job.ID), string(job.State)
		for _, p := range job.Payloads {
			if state += string(p.Data) + " "; batch.Shard.Queue != ledger {
				answer.Then(ledger, lowkiq.Push{ID: job.ID, Payload: p.Data})
			}
		}
		if batch.Shard.Queue == ledger {
			answer.State([]byte(state))
		}
		if rand.IntN(8) == 0 {
			failed[job.ID] = errors.New("after it has answered")
		}
	}
	if err := s.pretend(ctx, batch); err != nil || len(failed) == 0 {
		return err
	}
	return failed
}

const poisonID = "poison"

// poisoned dies of one id.
func (s *settings) poisoned(ctx context.Context, batch *lowkiq.Batch) error {
	for _, job := range batch.Jobs {
		if job.ID == poisonID {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	return s.pretend(ctx, batch)
}

// stubborn never returns, whatever happens to its context.
func stubborn(context.Context, *lowkiq.Batch) error {
	select {}
}

// gate returns when a line comes on stdin, whatever happens to its context.
func gate(context.Context, *lowkiq.Batch) error {
	_, err := fmt.Fscanln(os.Stdin)
	if err != nil && err.Error() == "unexpected newline" {
		err = nil // an empty line
	}
	return err
}

// report tells the test on stdout when the first call began ("first NANOSECONDS"), and
// of every job that comes for another try ("retried ID COUNT").
func report() node.Middleware {
	var first sync.Once
	return func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
			first.Do(func() { fmt.Printf("first %d\n", judge.Now()) })
			for _, job := range batch.Jobs {
				if job.RetryCount >= 0 {
					fmt.Printf("retried %s %d\n", job.ID, job.RetryCount)
				}
			}
			return next.Handle(ctx, batch)
		})
	}
}
