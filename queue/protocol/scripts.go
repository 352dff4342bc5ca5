package protocol

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// runScript runs a script. The error is a [FencedError] if the shard refused an instance that does not hold its
// claim, and lowkiq.ErrUnknownQueue if the queue is deleted.
func runScript(ctx context.Context, db *redisdb.DB, s *redisdb.Script, keys []string, args ...any) (any, error) {
	reply, err := db.Run(ctx, s, keys, args...)
	return reply, readRefusal(err)
}

// shardsPerPipeline is the maximum number of shards that a pipeline reads or changes.
const shardsPerPipeline = 200

// RunEach runs a script on shards, in pipelines of shardsPerPipeline. It calls see with each answer, a list that is not
// empty. After the first error it reads the other answers of that pipeline, because their scripts have run, and begins no
// other pipeline.
func RunEach(ctx context.Context, script *redisdb.Script, shards []*Shard, args func(*Shard) []any, see func(*Shard, []any) error) error {
	for part := range slices.Chunk(shards, shardsPerPipeline) {
		calls := make([]*redisdb.Call, len(part))
		for i, s := range part {
			calls[i] = &redisdb.Call{Script: script, Keys: s.keys.For(script), Args: args(s)}
		}
		shards[0].registry.db.RunAll(ctx, calls)
		var first error
		for i, call := range calls {
			answer, err := redisdb.List(call.Reply), call.Err
			if err == nil && len(answer) == 0 {
				err = fmt.Errorf("%s answered %v", script.Name, call.Reply)
			}
			if err == nil {
				err = see(part[i], answer)
			}
			if err != nil && first == nil {
				first = fmt.Errorf("shard %s: %w", part[i], err)
			}
		}
		if first != nil {
			return first
		}
	}
	return nil
}
