package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Note is a note of a handler about a job in flight: its progress, a line of log, or a state.
type Note struct {
	Flight int64
	ID     string
	lowkiq.Note
}

// Note stores a note about a job in flight. The error is lowkiq.ErrEnded if the job is not in the flight any
// more.
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

// LastNote returns the time of the last note about any of the ids, by Redis's clock, whoever sent it. A note with
// a state alone does not count. It returns the zero time if there is no note.
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

// Note is Claim.Note for a caller that knows only the fence, which a handler gets with its batch.
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
