package sqloutbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// table has the statements of a relay. They are the same in both dialects.
type table struct{ db *sql.DB }

const (
	maxQueues    = 1000 // queues of a turn
	maxPage      = 500  // rows of a page
	maxPageBytes = 8 << 20
)

// queues returns the names of queues with rows, in order, from the first name behind after.
func (t table) queues(ctx context.Context, after string) (names []string, err error) {
	// each step of the recursion finds the next name by the index
	rows, cancel, err := t.query(ctx, `
		WITH RECURSIVE q(queue) AS (
			SELECT min(queue) FROM lowkiq_outbox WHERE retry_at >= 0 AND queue > $1
			UNION ALL
			SELECT (SELECT min(o.queue) FROM lowkiq_outbox o WHERE o.retry_at >= 0 AND o.queue > q.queue) FROM q WHERE q.queue IS NOT NULL
		)
		SELECT queue FROM q WHERE queue IS NOT NULL LIMIT $2`, after, maxQueues)
	if err != nil {
		return nil, err
	}
	defer cancel()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// due selects the rows of a queue that may be pushed: neither set aside nor of an id with a row that was refused a moment
// ago. The ids are found once for a statement, because many rows may wait behind a refused row.
const due = `FROM lowkiq_outbox o, lowkiq_outbox_clock c
	WHERE o.queue = $1 AND o.retry_at >= 0 AND o.retry_at <= c.ms AND o.id NOT IN (
		SELECT b.id FROM lowkiq_outbox b WHERE b.queue = $1 AND b.retry_at > 0 AND b.retry_at > (SELECT ms FROM lowkiq_outbox_clock))`

// page returns the first due rows of a queue, at most maxPage rows and about maxPageBytes. full reports that there may
// be more.
//
// It reads from the lowest number each time. A transaction that commits late may add rows below the numbers that were
// pushed already. They belong to other ids, because an id has one open transaction at a time.
func (t table) page(ctx context.Context, queue string) (page []row, full bool, err error) {
	last, full, err := t.pageEnd(ctx, queue)
	if err != nil || last == 0 {
		return nil, false, err
	}
	rows, cancel, err := t.query(ctx, `
		SELECT o.seq, o.id, o.payload, o.header, o.perform_at, o.urgent, o.tries, c.ms - o.added_at `+due+`
		AND o.seq <= $2 ORDER BY o.seq LIMIT $3`, queue, last, maxPage)
	if err != nil {
		return nil, false, err
	}
	defer cancel()
	for rows.Next() {
		var r row
		var age int64
		if err := rows.Scan(&r.seq, &r.id, &r.payload, &r.header, &r.performAt, &r.urgent, &r.tries, &age); err != nil {
			return nil, false, err
		}
		r.age = time.Duration(age) * time.Millisecond
		page = append(page, r)
	}
	return page, full, rows.Err()
}

// pageEnd returns the last number of a page, or 0. It reads no payloads.
func (t table) pageEnd(ctx context.Context, queue string) (last int64, full bool, err error) {
	rows, cancel, err := t.query(ctx, `SELECT o.seq, length(o.payload) + length(o.header) `+due+` ORDER BY o.seq LIMIT $2`, queue, maxPage)
	if err != nil {
		return 0, false, err
	}
	defer cancel()
	n, size := 0, 0
	for rows.Next() {
		var seq int64
		var bytes int
		if err := rows.Scan(&seq, &bytes); err != nil {
			return 0, false, err
		}
		if size += bytes; size > maxPageBytes && n > 0 {
			return last, true, nil
		}
		last, n = seq, n+1
	}
	return last, n == maxPage, rows.Err()
}

// lease takes or renews the lease. It returns false if another holder has it.
func (t table) lease(ctx context.Context, holder string, term time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	result, err := t.db.ExecContext(ctx, `
		UPDATE lowkiq_outbox_relay SET holder = $1, held_to = (SELECT ms FROM lowkiq_outbox_clock) + $2
		WHERE one = 1 AND (holder = $3 OR held_to <= (SELECT ms FROM lowkiq_outbox_clock))`, holder, term.Milliseconds(), holder)
	if err != nil {
		return false, fmt.Errorf("take the lease: %w", err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// release gives the lease back.
func (t table) release(ctx context.Context, holder string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := t.db.ExecContext(ctx, `UPDATE lowkiq_outbox_relay SET held_to = 0 WHERE one = 1 AND holder = $1`, holder)
	return err
}

// write deletes stored rows and marks refused rows.
func (t table) write(ctx context.Context, o *outcome) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if len(o.stored) > 0 {
		args := make([]any, len(o.stored))
		var list strings.Builder
		for i, seq := range o.stored {
			args[i] = seq
			fmt.Fprintf(&list, ", $%d", i+1)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM lowkiq_outbox WHERE seq IN (`+list.String()[2:]+`)`, args...); err != nil {
			return fmt.Errorf("remove pushed rows: %w", err)
		}
	}
	for _, refused := range o.refused {
		set := `retry_at = (SELECT ms FROM lowkiq_outbox_clock) + $1`
		wait := refused.wait.Milliseconds()
		if refused.aside {
			set, wait = `retry_at = $1`, -1
		}
		_, err := tx.ExecContext(ctx, `UPDATE lowkiq_outbox SET `+set+`, tries = tries + 1, error = $2 WHERE seq = $3`, wait, storable(refused.err.Error()), refused.row.seq)
		if err != nil {
			return fmt.Errorf("mark a refused row: %w", err)
		}
	}
	return tx.Commit()
}

// storable returns a text that each database can store. PostgreSQL refuses zero bytes and invalid UTF-8, and an error may
// quote any bytes.
func storable(text string) string {
	text = text[:min(len(text), maxErrorBytes)]
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
}

const maxErrorBytes = 4 << 10

// query runs a query with a timeout. The caller reads all rows and calls cancel.
func (t table) query(ctx context.Context, text string, args ...any) (*sql.Rows, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	rows, err := t.db.QueryContext(ctx, text, args...)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("read the outbox: %w", err)
	}
	return rows, func() {
		_ = rows.Close() // it has been read to its end, or is not needed
		cancel()
	}, nil
}
