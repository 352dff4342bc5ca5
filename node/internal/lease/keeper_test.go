package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/clock"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// leaseFunc is a Lease whose renewals are calls of a function.
type leaseFunc func(ctx context.Context) error

func (f leaseFunc) Renew(ctx context.Context, _ []byte, _ time.Duration) error { return f(ctx) }

// kept is a keeper in a synctest bubble, with the bubble's clock.
type kept struct {
	*Keeper
	begun   time.Time
	jump    atomic.Int64 // ns that the clock has counted while the process was suspended
	renewed atomic.Int64
}

func keep(t *testing.T, renew leaseFunc) *kept {
	t.Helper()
	k := &kept{begun: time.Now(), Keeper: testKeeper()}
	k.now = func() time.Duration { return time.Since(k.begun) + time.Duration(k.jump.Load()) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.KeepRenewing(ctx, renew, func(context.Context) { k.renewed.Add(1) }) }()
	t.Cleanup(func() { cancel(); <-ended })
	return k
}

// lostAfter waits for the keeper's end and returns how long that took.
func (k *kept) lostAfter() time.Duration {
	<-k.lost
	return time.Since(k.begun)
}

const ttl = 6 * time.Second

var errBoom = errors.New("boom")

func testKeeper() *Keeper {
	return NewKeeper(ttl, clock.SinceBoot, func() []byte { return nil }, func(error) bool { return false }, slog.New(slog.DiscardHandler))
}

func TestKeeperRenews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := keep(t, func(context.Context) error { return nil })
		time.Sleep(time.Hour) // the bubble's
		synctest.Wait()
		if !k.Holds() {
			t.Error("lost although each renewal was good")
		}
		if want := int64(3601); k.renewed.Load() != want {
			t.Errorf("%d renewals in an hour, want %d: one per ttl/6", k.renewed.Load(), want)
		}
	})
}

// TestKeeperDeadline checks that the lease is lost 0.7 ttl after the last good request was sent. Neither the time of
// its answer nor the failures after it change that.
func TestKeeperDeadline(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	refuse := func(context.Context) error { return errBoom }
	for _, c := range []struct {
		name  string
		after func(context.Context) error // the renewals after the good renewals
		slow  time.Duration               // how long a good renewal takes
		want  time.Duration               // 0.7 ttl after the last good request; up to a tick late
	}{
		{"redis hangs", hang, 0, 10*time.Second + ttl*7/10},
		{"redis refuses", refuse, 0, 10*time.Second + ttl*7/10},
		{"slow answers before", refuse, ttl/6 - time.Millisecond, 10*time.Second + ttl*7/10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				begun := time.Now()
				k := keep(t, func(ctx context.Context) error {
					asked.Add(1)
					if time.Since(begun) <= 10*time.Second {
						time.Sleep(c.slow)
						return nil
					}
					return c.after(ctx)
				})
				got := k.lostAfter()
				if got < c.want || got > c.want+ttl/60 {
					t.Errorf("lost after %s, want %s to %s", got, c.want, c.want+ttl/60)
				}
				if k.Holds() || !errors.Is(k.lostReason, lowkiq.ErrLeaseLost) {
					t.Errorf("holds %v, why %v", k.Holds(), k.lostReason)
				}
				if least := int64(13); asked.Load() < least {
					t.Errorf("%d renewals were tried, want %d: until the deadline", asked.Load(), least)
				}
				if got, want := k.exitTime()-k.SafeEnd(), ttl/5; got != want {
					t.Errorf("handlers have %s to return, want %s", got, want)
				}
			})
		})
	}
}

// TestKeeperRecovers checks that an outage shorter than the deadline has no effect.
func TestKeeperRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		k := keep(t, func(context.Context) error {
			if d := time.Since(begun); d > 10*time.Second && d < 14*time.Second {
				return errBoom
			}
			return nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if !k.Holds() {
			t.Errorf("lost: %v", k.lostReason)
		}
	})
}

// TestKeeperLateReply checks that an answer after the safe end revives nothing, even before watchClock has noticed the
// end.
func TestKeeperLateReply(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{time.Nanosecond, time.Millisecond, ttl / 60, ttl} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kept{begun: time.Now(), Keeper: testKeeper()}
				k.now = func() time.Duration { return time.Since(k.begun) }
				time.Sleep(ttl / 2) // this is when the next renewal is sent
				on := k.renewOnce(t.Context(), leaseFunc(func(context.Context) error {
					time.Sleep(ttl*7/10 - ttl/2 + late) // whatever its context says, like a thawed process
					return nil
				}), func(context.Context) { t.Error("a late renewal was taken for a good one") })
				if on || k.Holds() || k.lastSent.Load() != 0 {
					t.Errorf("on %v, holds %v, good %d: revived", on, k.Holds(), k.lastSent.Load())
				}
			})
		})
	}
}

func TestKeeperMissingLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		k := keep(t, func(context.Context) error {
			if asked.Add(1) == 5 {
				return fmt.Errorf("x: %w", lease.ErrGone)
			}
			return nil
		})
		if got, want := k.lostAfter(), 4*ttl/6; got != want {
			t.Errorf("lost after %s, want %s", got, want)
		}
		if !errors.Is(k.lostReason, lowkiq.ErrLeaseLost) || !errors.Is(k.lostReason, lease.ErrGone) {
			t.Errorf("why is %v", k.lostReason)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if k.Holds() || asked.Load() != 5 {
			t.Errorf("holds %v after %d renewals; want no more than 5", k.Holds(), asked.Load())
		}
	})
}

// TestKeeperSuspend lets the clock jump while the machine sleeps. The next check before a handler call notices, with no
// tick in between.
func TestKeeperSuspend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		jump time.Duration
		want bool
	}{{ttl / 2, true}, {ttl*7/10 + 1, false}, {time.Hour, false}} {
		t.Run(fmt.Sprint(c.jump), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := keep(t, func(context.Context) error { return nil })
				time.Sleep(ttl / 6)
				synctest.Wait() // the second renewal is good
				k.jump.Store(int64(c.jump))
				if got := k.Holds(); got != c.want {
					t.Errorf("holds is %v after a sleep of %s, want %v", got, c.jump, c.want)
				}
				time.Sleep(ttl)
				synctest.Wait()
				if got := k.Holds(); got != c.want {
					t.Errorf("later holds is %v, want %v for good", got, c.want)
				}
			})
		})
	}
}

// TestKeeperWarnsOfASlowNetwork checks that the keeper warns once if renewals take longer than ttl/60 again and again.
func TestKeeperWarnsOfASlowNetwork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		took func(n int64) time.Duration // of renewal n
		want int
	}{
		{"far", func(int64) time.Duration { return ttl/60 + time.Millisecond }, 1},
		{"near enough", func(int64) time.Duration { return ttl / 60 }, 0},
		{"a pause now and then", func(n int64) time.Duration {
			if n%6 == 0 {
				return 0
			}
			return ttl / 10
		}, 0},
		{"far, near and far", func(n int64) time.Duration {
			if n == 20 {
				return 0
			}
			return ttl / 10
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				var n atomic.Int64
				k := &kept{begun: time.Now(), Keeper: testKeeper()}
				k.now, k.log = func() time.Duration { return time.Since(k.begun) }, slog.New(slog.NewTextHandler(&log, nil))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				k.KeepRenewing(ctx, leaseFunc(func(context.Context) error { time.Sleep(c.took(n.Add(1))); return nil }), func(context.Context) {})
				if got := strings.Count(log.String(), "redis is far away"); got != c.want || c.want > 0 && !strings.Contains(log.String(), "at least 60 round trips") {
					t.Errorf("got %d warnings, want %d: %s", got, c.want, log.String())
				}
			})
		})
	}
}
