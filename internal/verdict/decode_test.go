package verdict

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// A hook sees payloads as handlers do; one that cannot be decoded is as it is stored, and the batch stays what it was.
func TestDecodedHook(t *testing.T) {
	t.Parallel()
	decode := func(data []byte) ([]byte, error) {
		if data[0] != '+' {
			return nil, errors.New("boom")
		}
		return data[1:], nil
	}
	stored := []lowkiq.Payload{{Data: []byte("+1")}, {Data: []byte("2")}}
	var got string
	hook := DecodedHook(decode, func(_ context.Context, e *lowkiq.Event) error {
		got = fmt.Sprintf("%s %s", e.Jobs[0].Payloads[0].Data, e.Jobs[0].Payloads[1].Data)
		return nil
	})
	if err := hook(t.Context(), &lowkiq.Event{Jobs: []lowkiq.Ended{{Job: lowkiq.Job{Payloads: stored}}}}); err != nil || got != "1 2" || string(stored[0].Data) != "+1" {
		t.Errorf("got %q, %v, and %q is stored; want 1 2 of +1", got, err, stored[0].Data)
	}
	if DecodedHook(decode, nil) != nil {
		t.Error("no hook became one")
	}
}
