package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Tx is a transaction: a *sql.Tx, or a *sql.Conn that has begun one.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// maxInserted is the maximum number of rows of an INSERT. Its parameters are far below the limits of both databases.
const maxInserted = 500

// Add adds pushes to the outbox as part of tx. If tx commits, a [Relay] pushes them, and otherwise nobody does.
//
// All pushes are checked before the first is added. An id must be UTF-8 without a zero byte. A push must have no score,
// because its number in the outbox is its score, and no ReplyTo. The limits of the queue are checked by the relay.
//
// In PostgreSQL an Add of an id waits until other transactions that have added to this id end, as an update of the same
// row would. So call Add late in a transaction. Two transactions that add to the same ids in different orders may
// deadlock, and PostgreSQL then ends one of them; pushes of one Add never do, because Add sorts them by id. A
// transaction holds a lock for each id; see max_locks_per_transaction.
func Add(ctx context.Context, tx Tx, queueName string, pushes ...lowkiq.Push) error {
	if err := cmp.Or(protocol.CheckName("queue", queueName), protocol.CheckNotReserved(queueName)); err != nil {
		return fmt.Errorf("sqloutbox: %w", err)
	}
	rows := make([]row, len(pushes))
	for i := range pushes {
		var err error
		if rows[i], err = newRow(&pushes[i]); err != nil {
			return fmt.Errorf("sqloutbox: queue %s: id %.40q: %w", queueName, pushes[i].ID, err)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.id, b.id) })
	for part := range slices.Chunk(rows, maxInserted) {
		if err := insert(ctx, tx, queueName, part); err != nil {
			return fmt.Errorf("sqloutbox: add to queue %s: %w", queueName, err)
		}
	}
	return nil
}

func insert(ctx context.Context, tx Tx, queueName string, rows []row) error {
	var text strings.Builder
	text.WriteString("INSERT INTO lowkiq_outbox (queue, id, payload, header, perform_at, urgent) VALUES ")
	args := make([]any, 0, 6*len(rows))
	for i, r := range rows {
		if i > 0 {
			text.WriteString(", ")
		}
		n := len(args)
		fmt.Fprintf(&text, "($%d, $%d, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5, n+6)
		args = append(args, queueName, r.id, r.payload, r.header, r.performAt, r.urgent)
	}
	_, err := tx.ExecContext(ctx, text.String(), args...)
	return err
}

// row is a row of the outbox.
type row struct {
	seq       int64
	id        string
	payload   []byte
	header    string
	performAt int64 // microseconds since 1970, 0 for now
	urgent    int
	tries     int
	age       time.Duration
}

func newRow(push *lowkiq.Push) (r row, err error) {
	switch {
	case push.ID == "" || len(push.ID) > lowkiq.MaxIDBytes:
		return r, fmt.Errorf("%w: it must have 1 to %d bytes", queue.ErrID, lowkiq.MaxIDBytes)
	case !utf8.ValidString(push.ID) || strings.Contains(push.ID, "\x00"):
		return r, fmt.Errorf("%w: it must be UTF-8 without a zero byte", queue.ErrID)
	case push.Score != nil:
		return r, errors.New("the push has a score; it must have none, because its number in the outbox is its score")
	case push.ReplyTo != "":
		return r, fmt.Errorf("%w; a push of the outbox must have none", queue.ErrReplyTo)
	}
	header, err := lowkiq.NewHeader(push.Header)
	if err != nil {
		return r, err
	}
	r = row{id: push.ID, payload: push.Payload, header: string(header)}
	if r.payload == nil {
		r.payload = []byte{}
	}
	if at := push.PerformAt; !at.IsZero() {
		if at.Unix() < lowkiq.MinPerformAt || at.Unix() >= lowkiq.MaxPerformAt {
			return r, queue.ErrPerformAt
		}
		r.performAt = at.UnixMicro()
	}
	if push.Urgent {
		r.urgent = 1
	}
	return r, nil
}
