package sqloutbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Relay pushes what is in an outbox. DB and Client are required.
//
// What happens to a push that Redis or the queue refuses depends on the reason.
//
//   - If Redis does not answer, the relay repeats the push until it does, at least every 30 s.
//   - If the push can never be stored, for example because its payload is too large, its row is set aside at once.
//   - Otherwise the row waits, for example because the queue is not registered or too many payloads wait for the id. The
//     relay tries again after a second, and later every minute. Later rows of the id wait as well, so that they keep
//     their order. A row that is refused for at least the tenth time when it is older than Patience is set aside.
//
// Rows of other ids are pushed meanwhile. A row that is set aside stays in the table with its error and the retry_at -1,
// and later rows of its id are pushed. A person lists, repeats and drops such rows:
//
//	SELECT seq, queue, id, error FROM lowkiq_outbox WHERE retry_at = -1
//	UPDATE lowkiq_outbox SET retry_at = 0 WHERE seq = 17
//	DELETE FROM lowkiq_outbox WHERE seq = 17
type Relay struct {
	DB *sql.DB
	// Client pushes. It is a *queue.Client.
	Client interface {
		Push(ctx context.Context, queue string, jobs ...lowkiq.Push) ([]queue.Result, error)
	}
	// Every is the time between two looks at an empty outbox. Default 200 ms.
	Every time.Duration
	// Patience is the age from which a row is set aside that was refused ten times. Default 24 h.
	Patience time.Duration
	Log      *slog.Logger // default slog.Default()

	term time.Duration // of the lease, 0 for leaseTerm
	hook func(step)    // runs after each step; tests kill the relay there
}

const (
	defaultEvery    = 200 * time.Millisecond
	defaultPatience = 24 * time.Hour

	// leaseTerm is the time that others wait for a relay that was killed. The last quarter of the term is for pushes
	// that a connection sends late, up to queue.Config.Timeout.
	leaseTerm = 20 * time.Second

	minPause, maxPause = time.Second, 30 * time.Second // after a failure of the database or of Redis
	minRetry, maxRetry = time.Second, time.Minute      // of a refused row
	idleTime           = time.Second                   // of a queue that refuses every push

	statementTimeout = 5 * time.Second
)

// step is a step of a relay.
type step int

const (
	leased   step = iota // the relay has the lease
	read                 // it has read rows
	pushed               // Redis has them
	recorded             // the outcome is in the database
)

// Run pushes until ctx ends, and then returns nil. It logs failures of the database or of Redis and goes on. If another
// relay works, Run waits until it ends, or does not renew its lease for 20 s.
func (r Relay) Run(ctx context.Context) error {
	switch {
	case r.DB == nil:
		return errors.New("sqloutbox: Relay.DB is nil")
	case r.Client == nil:
		return errors.New("sqloutbox: Relay.Client is nil")
	case r.Every < 0 || r.Patience < 0:
		return fmt.Errorf("sqloutbox: Relay.Every is %v and Relay.Patience %v; both must be at least 0", r.Every, r.Patience)
	}
	run := newRun(r)
	defer run.end(ctx)
	for pause := minPause; ; {
		wait := run.Every
		switch more, err := run.turn(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			run.Log.Warn("outbox: the relay failed and tries again", "in", pause, "error", err)
			wait, pause = pause, min(2*pause, maxPause)
		case more:
			wait, pause = 0, minPause
		default:
			pause = minPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// run is a run of a relay.
type run struct {
	Relay
	table
	holder  string               // names this run in the lease
	leaseTo time.Time            // the end of the lease, zero if another run has it
	idle    map[string]time.Time // queues that refuse every push, and when they are tried again
	from    string               // the next turn begins with the queue behind this queue
	outcome *outcome             // of the last push, until it is in the database
}

func newRun(r Relay) *run {
	if r.Every == 0 {
		r.Every = defaultEvery
	}
	if r.Patience == 0 {
		r.Patience = defaultPatience
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.term == 0 {
		r.term = leaseTerm
	}
	if r.hook == nil {
		r.hook = func(step) {}
	}
	return &run{Relay: r, table: table{r.DB}, holder: rand.Text(), idle: map[string]time.Time{}}
}

// turn pushes a page of each queue. more reports that there may be more rows.
func (r *run) turn(ctx context.Context) (more bool, err error) {
	if err := r.writeOutcome(ctx); err != nil {
		return false, err
	}
	queues, err := r.queues(ctx, r.from)
	if err != nil {
		return false, err
	}
	var errs []error
	maps.DeleteFunc(r.idle, func(_ string, until time.Time) bool { return time.Now().After(until) })
	for _, name := range queues {
		if _, idle := r.idle[name]; idle {
			continue
		}
		held, full, err := r.relayPage(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("queue %s: %w", name, err))
		}
		if !held || r.outcome != nil {
			return false, errors.Join(errs...)
		}
		more = more || full
	}
	r.from = ""
	if len(queues) == maxQueues {
		r.from, more = queues[maxQueues-1], true
	}
	return more, errors.Join(errs...)
}

// relayPage pushes the first rows of a queue. held reports that this run has the lease, and full that there may be more
// rows.
//
// Only the run with the lease reads and pushes. A run without it could push rows that another run has pushed before,
// behind rows that the other run has pushed since.
func (r *run) relayPage(ctx context.Context, name string) (held, full bool, err error) {
	if held, err := r.renewLease(ctx); err != nil || !held {
		return false, false, err
	}
	ctx, cancel := context.WithDeadline(ctx, r.leaseTo.Add(-r.term/4))
	defer cancel()
	rows, full, err := r.page(ctx, name)
	if err != nil || len(rows) == 0 {
		return true, false, err
	}
	r.hook(read)
	results, err := r.Client.Push(ctx, name, pushesOf(rows)...)
	r.hook(pushed)
	o := judge(rows, results, err, r.Patience)
	r.outcome = o
	for _, refused := range o.refused {
		switch row := refused.row; {
		case refused.aside:
			r.Log.Error("outbox: a row is set aside", "queue", name, "seq", row.seq, "id", row.id, "error", refused.err)
		case row.tries == 0:
			r.Log.Warn("outbox: a row is refused and waits", "queue", name, "seq", row.seq, "id", row.id, "error", refused.err)
		}
	}
	if o.closed {
		r.idle[name] = time.Now().Add(idleTime)
	}
	if err := r.writeOutcome(ctx); err != nil {
		return true, false, err
	}
	r.hook(recorded)
	return true, full && !o.closed, o.err
}

// renewLease takes the lease, or renews it when a quarter of its term is over. held is false if another run has it.
func (r *run) renewLease(ctx context.Context) (held bool, err error) {
	begun := time.Now()
	if r.leaseTo.Sub(begun) > r.term*3/4 {
		return true, nil
	}
	r.leaseTo = time.Time{}
	held, err = r.lease(ctx, r.holder, r.term)
	if held {
		r.leaseTo = begun.Add(r.term)
		r.hook(leased)
	}
	return held, err
}

// writeOutcome writes the outcome of the last push. It does so even if ctx has ended, so that a relay that is told to
// stop leaves no pushed rows. If it fails, the outcome is written before the next push.
func (r *run) writeOutcome(ctx context.Context) error {
	if r.outcome == nil {
		return nil
	}
	err := r.write(context.WithoutCancel(ctx), r.outcome)
	if err == nil {
		r.outcome = nil
	}
	return err
}

// end gives the lease back.
func (r *run) end(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	err := r.writeOutcome(ctx)
	if !r.leaseTo.IsZero() {
		err = errors.Join(err, r.release(ctx, r.holder))
	}
	if err != nil {
		r.Log.Warn("outbox: the relay ends with its lease, so another relay waits for it", "for", r.term, "error", err)
	}
}

// pushesOf returns the pushes of rows. The score of a push is the number of its row.
func pushesOf(rows []row) []lowkiq.Push {
	pushes := make([]lowkiq.Push, len(rows))
	for i, row := range rows {
		score := float64(row.seq)
		pushes[i] = lowkiq.Push{ID: row.id, Payload: row.payload, Score: &score, Urgent: row.urgent != 0, Header: lowkiq.Header(row.header).Map()}
		if row.performAt != 0 {
			pushes[i].PerformAt = time.UnixMicro(row.performAt)
		}
	}
	return pushes
}
