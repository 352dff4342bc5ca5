package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows progress on a terminal, and nothing elsewhere.
type bar struct{ shown *progressbar.ProgressBar }

// newBar counts jobs up to total; -1 if that is unknown.
func newBar(f *os.File, total int64, what string) *bar {
	if !terminal(f) {
		return &bar{}
	}
	opts := []progressbar.Option{progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionSetPredictTime(total > 0), progressbar.OptionClearOnFinish(),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("jobs")}
	return &bar{progressbar.NewOptions64(total, opts...)}
}

func (b *bar) at(n int) {
	if b.shown != nil {
		b.shown.Set(n) //nolint:errcheck // a picture
	}
}

// clear makes room for a line.
func (b *bar) clear() {
	if b.shown != nil {
		b.shown.Clear() //nolint:errcheck // a picture
	}
}
