package node

import (
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

// enforce ends handlers when the lease is lost; at 0.9 ttl after its last good renewal
// it calls OnOverrun if one still runs. It waits for no answer of Redis, unlike all else
// that a lost lease leads to: with Redis frozen it must come in time, too (I1).
func (in *instance) enforce(handedBack <-chan struct{}) {
	select {
	case <-in.keeper.lost:
	case <-handedBack:
		return
	}
	in.cancelWork(in.keeper.why)
	// A process that was frozen past 0.9 ttl gives its handlers a moment, too.
	left := max(in.keeper.overrun()-in.keeper.now(), in.node.cfg.TTL/20)
	if !in.wait(handedBack, left) {
		in.overrun(in.calls)
	}
}

// calls is how many handler calls run.
func (in *instance) calls() (n int64) {
	for _, r := range in.all() {
		n += r.calls.Load()
	}
	return n
}

// overrun calls OnOverrun if handlers still run. Several lost claims may lead here at once:
// whoever ends the handlers of one may have ended those of the others.
func (in *instance) overrun(running func() int64) {
	in.overruns.Lock()
	defer in.overruns.Unlock()
	if running() > 0 {
		in.node.cfg.OnOverrun(stacks())
	}
}

// await waits until no lane runs. At a shutdown it cancels handlers after the configured
// patience, and shutdownGrace later calls OnOverrun.
func (in *instance) await() {
	done := make(chan struct{})
	go func() { in.lanes.Wait(); close(done) }()
	if in.stop.Err() != nil && !in.patient(done, in.node.cfg.ShutdownTimeout) && !in.keeper.ended.Load() {
		in.log.Warn("handlers still run: cancelling them", "calls", in.calls())
		in.cancelWork(lowkiq.ErrShutdown)
		if !in.patient(done, shutdownGrace) && !in.keeper.ended.Load() {
			in.overrun(in.calls)
		}
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

// wait waits for done for d. It reports whether done came.
func (in *instance) wait(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
