package demo

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// event is something that happens to a cluster.
type event string

const (
	kill  event = "kill -9"
	join  event = "join"
	drain event = "drain"
)

// act is an event at its place in the stream.
type act struct {
	event event
	node  string // the node that it happens to
	at    int    // it is due after this many pushed payloads
}

var acts = [...]act{{kill, "n2", Payloads * 25 / 100}, {join, "n4", Payloads * 45 / 100}, {drain, "n3", Payloads * 65 / 100}}

// gate returns how many payloads may be pushed before the act has begun. So payloads are left to flow during the act on a
// slow machine as well.
func (a act) gate() int { return a.at + Payloads/10 }

// Change is the effect of an event on the cluster.
type Change struct {
	Event string
	Node  string
	Moved int           // shards with another owner than before
	Took  time.Duration // time until every shard had the right owner
}

// performAct waits until the act is due, performs it, and waits until the cluster has followed.
func (s *stage) performAct(ctx context.Context, a act, index int) (Change, error) {
	what := fmt.Sprintf("%s of %s", a.event, a.node)
	if err := s.awaitCondition(ctx, what, func() bool { return s.feeder.pushed.Load() >= int64(a.at) }); err != nil {
		return Change{}, err
	}
	if index+1 < len(acts) {
		s.feeder.allow(acts[index+1].gate())
	} else {
		s.feeder.allow(Payloads)
	}
	s.now = what + ": its shards move"
	before, began := s.seen.Load(), time.Now()
	if err := s.doAct(ctx, a, before); err != nil {
		return Change{}, fmt.Errorf("%s: %w", what, err)
	}
	if err := s.awaitBalance(ctx, began); err != nil {
		return Change{}, fmt.Errorf("%s: %w", what, err)
	}
	after := s.seen.Load()
	c := Change{string(a.event), a.node, after.countMoved(before), time.Since(began)}
	s.cfg.Say("All %d shards are served %s after the %s; %d moved: %s.", queueShards, formatSeconds(c.Took), a.event, c.Moved, after.sharesText())
	s.now = "jobs flow"
	return c, nil
}

// doAct adds, kills or drains a worker and says so. before has the shards and the leader before the act.
func (s *stage) doAct(ctx context.Context, a act, before *view) error {
	if a.event == join {
		w, err := s.startWorker()
		if err == nil {
			s.cfg.Say("Added %s as process %d.", w.name, w.pid())
		}
		return err
	}
	w := s.workers[slices.IndexFunc(s.workers, func(w *worker) bool { return w.name == a.node })]
	had := fmt.Sprintf("which had %d shards", before.owned[w.name])
	if before.leader == w.name {
		had += " and led the cluster"
	}
	if a.event == kill {
		if err := w.kill(s.notes); err != nil {
			return err
		}
		s.cfg.Say("kill -9 of %s, process %d, %s.", w.name, w.pid(), had)
		return nil
	}
	s.cfg.Say("SIGTERM to %s, process %d, %s.", w.name, w.pid(), had)
	return s.drainWorker(ctx, w)
}

// drainWorker asks a node to end, and waits for its end.
func (s *stage) drainWorker(ctx context.Context, w *worker) error {
	began := time.Now()
	if err := w.requestEnd(); err != nil {
		return err
	}
	if err := s.awaitCondition(ctx, "the end of "+w.name, w.hasEnded); err != nil {
		return err
	}
	w.state = drained
	if w.err != nil {
		return fmt.Errorf("got %w, want exit code 0: %s", w.err, w.errors)
	}
	s.cfg.Say("%s gave its shards away and ended with exit code 0 after %s.", w.name, formatSeconds(time.Since(began)))
	return nil
}

// awaitBalance waits until a view that is newer than since shows that the working nodes share the shards evenly.
func (s *stage) awaitBalance(ctx context.Context, since time.Time) error {
	var names []string
	for _, w := range s.workers {
		if w.state == working {
			names = append(names, w.name)
		}
	}
	return s.awaitCondition(ctx, fmt.Sprintf("%v share the shards", names), func() bool {
		seen := s.seen.Load()
		return seen.asked.After(since) && seen.isBalanced(names)
	})
}

// startWorker starts the next node.
func (s *stage) startWorker() (*worker, error) {
	settings := s.settings
	settings.Name = fmt.Sprintf("n%d", len(s.workers)+1)
	w, err := startWorker(settings.Name, s.cfg.Worker(settings), &s.handled, s.apis)
	if err != nil {
		return nil, err
	}
	s.workers = append(s.workers, w)
	return w, nil
}

// endWorkers ends the last nodes. Their work is done, so a node that takes too long is killed.
func (s *stage) endWorkers() error {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	for _, w := range s.workers {
		if w.state == working {
			if err := w.requestEnd(); err != nil {
				return err
			}
		}
	}
	for _, w := range s.workers {
		select {
		case <-w.ended:
		case <-timer.C:
			timer.Reset(0)
			if err := w.kill(s.notes); err != nil {
				return err
			}
		}
		if w.state == leaving && w.err != nil {
			return fmt.Errorf("the end of %s: %w: %s", w.name, w.err, w.errors)
		}
	}
	return nil
}

// killAll kills the processes that are left.
func (s *stage) killAll() {
	for _, w := range s.workers {
		w.destroy()
	}
}

// formatSeconds returns a duration in seconds, for a person.
func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
