package protocol_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

// quiet drops the messages that go-redis prints, because tests break connections on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	leaktest.Main(m)
}
