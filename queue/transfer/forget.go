package transfer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// ErrForgotten is the error of entries of a source that was forgotten ([Forget]).
var ErrForgotten = errors.New("the source was forgotten because its move has ended")

// keepMark is how long the mark of a forgotten source tells its late entries from those of a new
// source.
const keepMark = 30 * 24 * time.Hour

// Forget removes what the queue's shards remember about a source that has no more entries: the
// numbers of the entries that are in. In the same step it leaves a mark in each shard, which then
// takes in no entry of the source. So an entry that a process sends again, although it was believed
// dead, is refused (ErrForgotten) and does not run twice. The next Forget of any source removes
// marks older than 30 days. So the name of a source must not be used again. A source may be
// forgotten more than once.
func Forget(ctx context.Context, q *protocol.Queue, source string) error {
	if err := checkSource(source); err != nil {
		return err
	}
	if err := q.Pushable(); err != nil {
		return err
	}
	now, err := q.Shard(0).DB().Time(ctx)
	if err != nil {
		return err
	}
	for _, shard := range q.All() {
		if err := forgetShard(ctx, shard, fieldOf(source), now.Add(-keepMark).UnixMicro()); err != nil {
			return fmt.Errorf("source %s: %w", source, err)
		}
	}
	return nil
}

// forgetShard ends a source in a shard. The fields of its ids no longer change once the mark is
// there. It removes marks from before old (us).
func forgetShard(ctx context.Context, s *protocol.Shard, field string, old int64) error {
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
	for cursor := "0"; ; {
		reply, err := s.DB().Do(ctx, "look for the fields of sources", "HSCAN", s.Keys().From, cursor, "COUNT", 1000)
		if err != nil {
			return err
		}
		page := redisdb.List(reply)
		if len(page) != 2 {
			return fmt.Errorf("HSCAN answered %.100v instead of a cursor and fields", reply)
		}
		gone := []any{"HDEL", s.Keys().From}
		fields := redisdb.Texts(page[1])
		for i := 0; i+1 < len(fields); i += 2 {
			if strings.HasPrefix(fields[i], field+"\x00") || isOldMark(fields[i], fields[i+1], old) {
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

// isOldMark reports whether a field is the mark of a source that was forgotten before a time (us).
func isOldMark(field, value string, by int64) bool {
	text, marked := strings.CutPrefix(value, "x ")
	at, err := strconv.ParseInt(text, 10, 64)
	return marked && err == nil && at < by && strings.HasPrefix(field, fieldOf(""))
}

func fieldOf(source string) string { return "import/" + source }

func checkSource(source string) error {
	if source == "" || len(source) > maxSource || strings.Contains(source, "\x00") {
		return fmt.Errorf("source %.300q: must have 1 to %d bytes, none of them 0", source, maxSource)
	}
	return nil
}
