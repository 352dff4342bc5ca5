package browse

import (
	"errors"
	"testing"
	"time"
)

func TestDecodeAttemptRefuses(t *testing.T) {
	t.Parallel()
	good := "1 0 failed 1 3\nan/1boom"
	if a, err := decodeAttempt(good); err != nil || a.ID != "a" || a.Instance != "n/1" || a.Error != "boom" || a.At != time.UnixMicro(1) {
		t.Errorf("%q: got %+v, %v, want an attempt", good, a, err)
	}
	for _, bad := range []string{"", "\n", "1 0 failed 1 3", "1 0 failed 1\na", "x 0 failed 1 3\nan/1", "1 0 failed 9 3\nan/1", "1 0 failed 1 9\nan/1", "1 0 failed -1 3\nan/1"} {
		if _, err := decodeAttempt(bad); !errors.Is(err, errAttempt) {
			t.Errorf("%q: got %v, want %v", bad, err, errAttempt)
		}
	}
}
