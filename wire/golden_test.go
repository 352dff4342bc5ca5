package wire

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/golden"
)

// TestGolden reads what every release has sent to handlers, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Fence: 1763600000000, Flight: 17, Jobs: []lowkiq.Job{
		{ID: "a", RetryCount: -1, PerformAt: time.UnixMicro(1763600000000001), Payloads: []lowkiq.Payload{{Score: 1.5, Data: []byte(`{"n":1}`)}, {Score: 2, Data: []byte("\xff\x00")}}},
		{ID: "\xff", RetryCount: 2, PerformAt: time.UnixMicro(1763600000000002), Error: "boom", Payloads: []lowkiq.Payload{{Score: 1e18, Data: []byte("text")}}},
	}}
	golden.Check(t, "batch", string(AppendBatch(nil, batch)), func(t *testing.T, stored string) {
		got, err := ParseBatch([]byte(stored))
		if err != nil {
			t.Fatal(err)
		}
		if again := string(AppendBatch(nil, got)); again != stored {
			t.Errorf("read and written again: %s, want %s", again, stored)
		}
	})
	const failed = `{"failed":{"a":"no stock"},"failed_base64":{"/w==":"boom"}}`
	golden.Check(t, "answer", failed, func(t *testing.T, stored string) {
		var got lowkiq.Failed
		if err := ParseAnswer([]byte(stored), batch); !errors.As(err, &got) || len(got) != 2 || got["a"] == nil || got["a"].Error() != "no stock" {
			t.Errorf("got %v", err)
		}
	})
	golden.Check(t, "answer-ok", `{"ok":true,"flight":17}`, func(t *testing.T, stored string) {
		if err := ParseAnswer([]byte(stored), batch); err != nil && !reflect.DeepEqual(err, nil) {
			t.Errorf("got %v, want none", err)
		}
	})
}
