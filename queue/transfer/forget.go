package transfer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// ErrForgotten: the source's move has ended ([Forget]), nothing of it is taken in any more.
var ErrForgotten = errors.New("the source was forgotten, as its move has ended")

// keepMark is how long a late entry of a forgotten source is told from one of a source that begins.
const keepMark = 30 * 24 * time.Hour

// Forget removes what the queue's shards remember of a source, once that has nothing more: which of its entries are in. It leaves a
// mark in each shard, in the step from which on no entry of the source is taken in there: one that a process that was thought dead
// sends again is refused (ErrForgotten), and does not run twice. Marks older than 30 days are removed by the next Forget of any source;
// so a source's name must not be used again, and may be forgotten more than once.
func Forget(ctx context.Context, q *queue.Queue, source string) error {
	if err := checkSource(source); err != nil {
		return err
	}
	if err := q.Pushable(); err != nil {
		return err
	}
	for _, shard := range q.All() {
		if err := forget(ctx, shard, fieldOf(source)); err != nil {
			return fmt.Errorf("source %s: %w", source, err)
		}
	}
	return nil
}

// forget ends a source in one shard. What is known of its ids changes no more once the mark is there.
func forget(ctx context.Context, s *queue.Shard, field string) error {
	script := s.DB().Scripts.Import
	for {
		_, err := s.DB().Run(ctx, script, s.Keys().For(script), 0, 0, s.Keys().Wake, field, "forget")
		if err == nil {
			break
		}
		if err = s.Refused(ctx, err); err != nil {
			return err
		}
	}
	old := time.Now().Add(-keepMark).UnixMicro()
	for cursor := "0"; ; {
		reply, err := s.DB().Do(ctx, "look for what is known of sources", "HSCAN", s.Keys().From, cursor, "COUNT", 1000)
		if err != nil {
			return err
		}
		page := redisdb.List(reply)
		if len(page) != 2 {
			return fmt.Errorf("HSCAN answered %.100v, want a cursor and fields", reply)
		}
		gone := []any{"HDEL", s.Keys().From}
		fields := redisdb.Texts(page[1])
		for i := 0; i+1 < len(fields); i += 2 {
			if strings.HasPrefix(fields[i], field+"\x00") || expired(fields[i], fields[i+1], old) {
				gone = append(gone, fields[i])
			}
		}
		if len(gone) > 2 {
			if _, err := s.DB().Do(ctx, "forget a source", gone...); err != nil {
				return err
			}
		}
		if cursor = redisdb.Text(page[0]); cursor == "0" {
			return nil
		}
	}
}

// expired reports whether a field is the mark of a source that was forgotten by then (us).
func expired(field, value string, by int64) bool {
	text, marked := strings.CutPrefix(value, "x ")
	at, err := strconv.ParseInt(text, 10, 64)
	return marked && err == nil && at < by && strings.HasPrefix(field, fieldOf(""))
}

func fieldOf(source string) string { return "import/" + source }

func checkSource(source string) error {
	if source == "" || len(source) > maxSource || strings.Contains(source, "\x00") {
		return fmt.Errorf("source %.300q: want 1 to %d bytes, none of them 0", source, maxSource)
	}
	return nil
}
