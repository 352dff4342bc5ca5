package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Note is what a handler says of a job in flight.
type Note struct {
	Flight int64
	ID     string
	lowkiq.Note
}

// Note stores what a handler says of a job while it has it. lowkiq.ErrEnded: it has the job no more.
func (c *Claim) Note(ctx context.Context, note Note) error {
	progress := ""
	if note.Progress != 0 || note.Log != "" {
		progress = strconv.FormatFloat(note.Progress, 'f', -1, 64) + "\n" + note.Log
	}
	reply, err := c.Run(ctx, c.registry.db.Scripts.Note, c.Instance, c.fence, note.Flight, note.ID, progress, stateArg(note.State, note.State != nil))
	if err != nil {
		return fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	if reply != int64(1) {
		return fmt.Errorf("shard %s: job %q is not in flight %d: %w", c.Shard, note.ID, note.Flight, lowkiq.ErrEnded)
	}
	return nil
}

// LastNote is when the last of these ids was noted of that is in flight or was, whoever has sent it, by Redis's clock; a note of a state alone
// does not count. Zero: none was.
func (c *Claim) LastNote(ctx context.Context, ids ...string) (last time.Time, err error) {
	cmd := redisdb.Cmd{"HMGET", c.keys.Progress}
	for _, id := range ids {
		cmd = append(cmd, id)
	}
	reply, err := c.registry.db.Do(ctx, "look for notes", cmd...)
	if err != nil {
		return last, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	for _, text := range redisdb.List(reply) {
		us, _, _ := strings.Cut(redisdb.Text(text), " ")
		if n, err := strconv.ParseInt(us, 10, 64); err == nil && n > last.UnixMicro() {
			last = time.UnixMicro(n)
		}
	}
	return last, nil
}

// Note is Claim.Note for who knows the fence alone, which a handler is given with its batch.
func (s *Shard) Note(ctx context.Context, fence int64, note Note) error {
	holder, err := s.Owner(ctx)
	if err != nil {
		return err
	}
	if holder.Fence != fence || holder.Instance == "" {
		return fmt.Errorf("shard %s: %w: %w", s, lowkiq.ErrEnded, &FencedError{holder})
	}
	return s.Adopt(holder.Instance, fence).Note(ctx, note)
}
