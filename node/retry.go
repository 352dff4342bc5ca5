package node

import (
	"time"

	"github.com/lowkiq/lowkiq/node/internal/runner"
)

// PanicError is the failure of a handler that panicked.
type PanicError = runner.PanicError

// DefaultRetryIn is Lowkiq's delay: count^4 + 15 + rand(30) * (count+1) seconds, where
// count is 0 after the first failure.
func DefaultRetryIn(count int) time.Duration { return runner.DefaultRetryIn(count) }
