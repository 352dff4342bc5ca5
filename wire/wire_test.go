package wire

import (
	"testing"

	"github.com/lowkiq/lowkiq"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one is a batch of one job with one payload.
func one(payload string) *lowkiq.Batch {
	return &lowkiq.Batch{
		Shard: lowkiq.Shard{Queue: "history", Index: 3}, Fence: 1763600000123, Flight: 17,
		Jobs: []lowkiq.Job{{ID: "a", RetryCount: -1, Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(payload)}}}},
	}
}
