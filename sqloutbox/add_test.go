package sqloutbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

func TestAdd(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := Add(t.Context(), tx, "mail", lowkiq.Push{ID: "lost"}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		pushes := make([]lowkiq.Push, 2*maxInserted+1) // of three statements
		for i := range pushes {
			pushes[i] = lowkiq.Push{ID: fmt.Sprint("id", i%7), Payload: []byte{byte(i), byte(i >> 8)}}
		}
		db.add(t, "mail", pushes...)
		db.add(t, "mail") // nothing
		rows, err := db.Query("SELECT id, payload FROM lowkiq_outbox ORDER BY seq")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close() //nolint:errcheck // a test
		last, n := map[string]int{}, 0
		for ; rows.Next(); n++ {
			var id string
			var payload []byte
			if err := rows.Scan(&id, &payload); err != nil {
				t.Fatal(err)
			}
			number := int(payload[0]) + int(payload[1])<<8
			if before, ok := last[id]; ok && before >= number || pushes[number].ID != id {
				t.Errorf("id %s: push %d comes after %d", id, number, before)
			}
			last[id] = number
		}
		if rows.Err() != nil || n != len(pushes) {
			t.Errorf("got %d rows, %v, want %d", n, rows.Err(), len(pushes))
		}
	})
}

// A refused push leaves nothing of its call.
func TestAddRefuses(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	score := 1.0
	for _, c := range []struct {
		queue string
		push  lowkiq.Push
		is    error
		want  string
	}{
		{"", lowkiq.Push{ID: "a"}, nil, "queue name is empty"},
		{"a/b", lowkiq.Push{ID: "a"}, nil, `queue name "a/b": use letters`},
		{"lowkiq.workflows", lowkiq.Push{ID: "a"}, nil, `names that begin with "lowkiq." belong to lowkiq`},
		{"mail", lowkiq.Push{}, queue.ErrID, "must have 1 to 512 bytes"},
		{"mail", lowkiq.Push{ID: strings.Repeat("a", 513)}, queue.ErrID, "must have 1 to 512 bytes"},
		{"mail", lowkiq.Push{ID: "a\xff"}, queue.ErrID, "must be UTF-8"},
		{"mail", lowkiq.Push{ID: "a\x00"}, queue.ErrID, "without a zero byte"},
		{"mail", lowkiq.Push{ID: "a", Score: &score}, nil, "has a score; it must have none"},
		{"mail", lowkiq.Push{ID: "a", ReplyTo: "rtoken 1 c"}, queue.ErrReplyTo, "must have none"},
		{"mail", lowkiq.Push{ID: "a", Header: map[string]string{"a b": ""}}, lowkiq.ErrHeader, "a b"},
		{"mail", lowkiq.Push{ID: "a", PerformAt: time.Unix(5, 0)}, queue.ErrPerformAt, "mail"},
	} {
		err := Add(t.Context(), db, c.queue, lowkiq.Push{ID: "good"}, c.push)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
}

func TestSchemaOfNone(t *testing.T) {
	t.Parallel()
	if got := Schema(0); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}
