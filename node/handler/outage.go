package handler

import (
	"log/slog"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
)

const (
	minOutagePause = time.Second
	maxOutagePause = 30 * time.Second
	warnEvery      = time.Second // of one handler, however many batches it is not given
)

// outage is a time in which nobody was there to be given a batch. Batches are postponed: they did
// not fail, so that no retry is spent and none is buried however long it lasts.
type outage struct {
	news chan struct{} // one slot: an outage has begun; nil: nobody wants to know

	mu    sync.Mutex
	began time.Time // the first batch that was not given to anybody; zero: there is no outage
	why   error     // what the last attempt came to
	said  time.Time // the last warning
	left  int       // batches since that no warning tells of
}

// note notes an attempt that reached nobody, and says since when that is so. mu is held.
func (o *outage) note(err error, now time.Time) (lasted time.Duration) {
	if o.began.IsZero() {
		o.began = now
		select {
		case o.news <- struct{}{}:
		default:
		}
	}
	o.why = err
	return now.Sub(o.began)
}

// failed notes an attempt without a batch that reached nobody.
func (o *outage) failed(err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note(err, now)
}

// lasts returns for how long there has been an outage, and why; nil: there is none.
func (o *outage) lasts(now time.Time) (lasted time.Duration, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return 0, nil
	}
	return now.Sub(o.began), o.why
}

// postpone is the answer to a batch that could not be given to who.
func (o *outage) postpone(log *slog.Logger, who string, err error, now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	after := outagePause(o.note(err, now))
	if o.said.IsZero() || now.Sub(o.said) >= warnEvery {
		log.Warn("handler not reached, batches are postponed", "handler", who, "since", o.began, "retry_in", after, "left_out", o.left, "err", err)
		o.said, o.left = now, 0
	} else {
		o.left++
	}
	return lowkiq.Postpone{After: after, Reason: err.Error()}
}

// over ends the outage: somebody took a batch, or would.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began, o.why = time.Time{}, nil
}

// outagePause is as long as the outage has lasted, so that the pauses of a batch double, whatever
// the number of batches that are tried meanwhile.
func outagePause(lasted time.Duration) time.Duration {
	return min(max(lasted, minOutagePause), maxOutagePause)
}
