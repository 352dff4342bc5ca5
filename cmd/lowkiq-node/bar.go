package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows progress on a terminal, and nothing elsewhere.
type bar struct{ shown *progressbar.ProgressBar }

// newBar counts jobs up to total; -1 if that is unknown. Without a text it shows only how
// far the whole is.
func newBar(f *os.File, total int64, what string) *bar {
	if !terminal(f) {
		return &bar{}
	}
	opts := []progressbar.Option{progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionSetPredictTime(total > 0), progressbar.OptionClearOnFinish()}
	if what != "" {
		opts = append(opts, progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("jobs"))
	}
	return &bar{progressbar.NewOptions64(total, opts...)}
}

func (b *bar) at(n int) {
	if b.shown != nil {
		b.shown.Set(n) //nolint:errcheck // a picture
	}
}

// describe shows what is done now, and how far the whole is (0 to 1).
func (b *bar) describe(what string, done float64) {
	if b.shown != nil {
		b.shown.Describe(what)
		b.shown.Set(int(100 * done)) //nolint:errcheck // a picture
	}
}

// clear makes room for a line.
func (b *bar) clear() {
	if b.shown != nil {
		b.shown.Clear() //nolint:errcheck // a picture
	}
}
