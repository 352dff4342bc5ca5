package terminal

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar shows progress on a terminal, and nothing elsewhere.
type Bar struct{ shown *progressbar.ProgressBar }

// NewBar returns a bar that counts jobs up to total. A total of -1 is unknown.
func NewBar(f *os.File, total int64, what string) *Bar {
	if !IsTerminal(f) {
		return &Bar{}
	}
	opts := []progressbar.Option{progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionSetPredictTime(total > 0), progressbar.OptionClearOnFinish(),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("jobs")}
	return &Bar{progressbar.NewOptions64(total, opts...)}
}

// Set shows that n jobs are done.
func (b *Bar) Set(n int) {
	if b.shown != nil {
		b.shown.Set(n) //nolint:errcheck // a picture
	}
}

// Clear removes the bar, to make room for a line.
func (b *Bar) Clear() {
	if b.shown != nil {
		b.shown.Clear() //nolint:errcheck // a picture
	}
}
