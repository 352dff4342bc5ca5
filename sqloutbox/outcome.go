package sqloutbox

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// outcome says what becomes of pushed rows. Other rows stay as they are.
type outcome struct {
	stored  []int64 // numbers of rows that Redis has
	refused []refusal
	closed  bool  // the queue refuses every push
	err     error // Redis or ctx kept some rows from an answer
}

// refusal is a row that was refused. It waits, or is set aside.
type refusal struct {
	row   row
	err   error
	wait  time.Duration // until the next try; later rows of the id wait as well
	aside bool
}

// errResults means that a middleware of the client does not keep its contract.
var errResults = errors.New("the push has no result for some jobs")

// judge returns the outcome of a push of rows: its result for each row, or an error of the push as a whole.
func judge(rows []row, results []queue.Result, err error, patience time.Duration) *outcome {
	o := &outcome{}
	if len(results) != len(rows) { // the queue is not registered, or is being deleted, say
		if err == nil {
			err = errResults
		}
		o.judgeQueue(rows, err, patience)
		return o
	}
	waiting := map[string]int{} // the place in refused of a row that waits, by id
	for i, row := range rows {
		switch err := results[i].Err; {
		case err == nil:
			o.stored = append(o.stored, row.seq)
			if k, overtaken := waiting[row.id]; overtaken { // a middleware refused it alone; pushed later, it would come too late
				o.refused[k].aside = true
			}
		case isTransient(err):
			o.err = err
		case errors.Is(err, queue.ErrUnsent): // it waits for an earlier row of its id
		default:
			aside := isFinal(err) || row.age >= patience && row.tries+1 >= minTries
			if !aside {
				waiting[row.id] = len(o.refused)
			}
			o.refused = append(o.refused, refusal{row, err, min(minRetry<<min(row.tries, 10), maxRetry), aside})
		}
	}
	return o
}

// minTries is the number of refusals from which an old row is set aside. A row may be old because no relay has run.
const minTries = 10

// judgeQueue is judge for an error of the whole push. All rows wait in place. The first row gets the error, so that
// people see it, and counts the refusals. Rows that are too old are set aside.
func (o *outcome) judgeQueue(rows []row, err error, patience time.Duration) {
	if isTransient(err) {
		o.err = err
		return
	}
	o.closed = true
	for i, row := range rows {
		if old := row.age >= patience && rows[0].tries+1 >= minTries; old || i == 0 {
			o.refused = append(o.refused, refusal{row: row, err: err, aside: old})
		}
	}
}

// isTransient reports whether Redis may answer otherwise soon, or has not answered.
func isTransient(err error) bool {
	return queue.Transient(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, queue.ErrClosed)
}

// isFinal reports whether the same push is refused with err whenever it is repeated.
func isFinal(err error) bool {
	for _, final := range []error{queue.ErrID, queue.ErrScore, queue.ErrPerformAt, queue.ErrPayloadSize, queue.ErrReplyTo, lowkiq.ErrHeader, protocol.ErrReserved} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}
