package redistest

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// Each runs a test on a Redis, with each script sent twice, on the embedded Redis, and in a Redis Cluster. The test
// adds the hooks to its client.
func Each(t *testing.T, test func(t *testing.T, url string, hooks ...redis.Hook)) {
	url := Start(t).URL()
	t.Run("single", func(t *testing.T) { test(t, url) })
	t.Run("twice", func(t *testing.T) { test(t, url, twice{}) })
	t.Run("embedded", func(t *testing.T) { test(t, StartMini(t).URL()) })
	t.Run("cluster", func(t *testing.T) {
		tier.All(t)
		test(t, StartCluster(t, 3).URL())
	})
}

// twice sends each script again, as go-redis does in a Redis Cluster when an answer is lost; the
// second answer counts.
type twice struct{}

func (twice) DialHook(next redis.DialHook) redis.DialHook { return next }
func (twice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return err
	}
}
func (twice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
