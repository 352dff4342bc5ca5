package node

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
)

// exitOverrun is the default of Config.OnOverrun.
func exitOverrun(stacks []byte) {
	slog.Error("a handler ignores its cancelled context and its shard may be claimed by another node: exiting", "stacks", string(stacks))
	os.Exit(75) // EX_TEMPFAIL: start me again
}

// Handlers may take this long after the shutdown's cancel.
const shutdownGrace = 2 * time.Second

// await waits until no lane runs: after a lost lease until 0.9 ttl, at a shutdown for
// the configured patience, then for shutdownGrace after the cancel. Then OnOverrun.
func (in *instance) await(stop context.Context) {
	done := make(chan struct{})
	go func() { in.lanes.Wait(); close(done) }()
	if stop.Err() != nil && !in.keeper.ended.Load() {
		if in.patient(done, in.node.cfg.ShutdownTimeout) {
			return
		}
		if !in.keeper.ended.Load() {
			in.log.Warn("handlers still run: cancelling them", "calls", in.calls.Load())
			in.cancelWork(lowkiq.ErrShutdown)
			if in.patient(done, shutdownGrace) {
				return
			}
		}
	}
	if in.keeper.ended.Load() {
		in.cancelWork(in.keeper.why)
		// A process that was frozen past 0.9 ttl gives its handlers a moment, too.
		in.wait(done, max(in.keeper.overrun()-in.keeper.now(), in.node.cfg.TTL/20))
	}
	select {
	case <-done:
		return
	default:
	}
	if in.calls.Load() > 0 {
		in.node.cfg.OnOverrun(stacks())
	}
	<-done
}

// patient waits for done for d, or until the lease is lost. It reports whether done came.
func (in *instance) patient(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-in.keeper.lost:
		return false
	case <-timer.C:
		return false
	}
}

func (in *instance) wait(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
