package events

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/changes"
)

const (
	listenFor   = 10 * time.Second // for which a listener counts as one after it said so
	listenEvery = 3 * time.Second  // how often it says so
	lookEvery   = time.Second      // how often it looks at what was changed
	silence     = 20 * time.Second // after which the connection is tested
	pongWithin  = 5 * time.Second
	tryAgain    = 250 * time.Millisecond
)

// Listen yields what happens from now on, until ctx ends or the loop does. Nodes know of the listener within two
// renewals of their leases, 2 s by default. An outage of Redis ends nothing; what was missed in it is told as
// an event.
func Listen(ctx context.Context, db *redisdb.DB, f Filter) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		ctx, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer group.Wait()
		defer stop()
		heard, changed := NewBacklog(), NewBacklog()
		l := &listener{db: db, filter: f}
		group.Go(func() { l.hear(ctx, heard) })
		group.Go(func() { l.look(ctx, changed) })
		for {
			var e Event
			select {
			case <-ctx.Done():
				return
			case e = <-heard.C():
			case e = <-changed.C():
			}
			if f.Takes(&e) && !yield(e) {
				return
			}
		}
	}
}

// listener is one who listens.
type listener struct {
	db     *redisdb.DB
	filter Filter
}

// hear passes on what nodes publish, until ctx ends.
func (l *listener) hear(ctx context.Context, to *Backlog) {
	for heard := false; ctx.Err() == nil; {
		if l.session(ctx, to, &heard); heard && ctx.Err() == nil {
			heard = false // once for an outage, however long
			to.Add(Event{Kind: Missed})
		}
		select {
		case <-ctx.Done():
		case <-time.After(tryAgain):
		}
	}
}

// session listens until its connection is broken. heard is set once there is one, so that something may be missed.
func (l *listener) session(ctx context.Context, to *Backlog, heard *bool) {
	sub := l.db.Subscribe(ctx)
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })() // unblocks the receive
	if sub.Add(ctx, l.db.Keys.Events(l.filter.Queue)) != nil {
		return
	}
	wait := silence
	for {
		news, err := sub.Receive(ctx, wait)
		switch {
		case err == nil && news.Confirmed:
			*heard, wait = true, silence
		case err == nil && news.Payload != "":
			wait = silence
			events, _ := parse(news.Payload) // what a later release says in other words is left out
			for _, e := range events {
				if l.filter.Takes(&e) {
					to.Add(e)
				}
			}
		case err == nil:
			wait = silence // a sign of life
		case redisdb.TimedOut(err) && wait == silence && sub.Ping(ctx) == nil:
			wait = pongWithin
		default:
			return
		}
	}
}

// look says that there is a listener, and passes on what is changed, until ctx ends.
func (l *listener) look(ctx context.Context, to *Backlog) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	cursor, said := "", time.Time{}
	for {
		if time.Since(said) >= listenEvery {
			_, err := l.db.Do(ctx, "listen", "SET", l.db.Keys.Listen(l.filter.Queue), "1", "PX", listenFor.Milliseconds())
			if err == nil {
				said = time.Now()
			}
		}
		if len(l.filter.Verdicts) == 0 {
			cursor = l.changes(ctx, cursor, to)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// changes passes on what was changed after a cursor, and returns the next one; "" is the end as it is now.
func (l *listener) changes(ctx context.Context, cursor string, to *Backlog) string {
	log := changes.In(l.db)
	if cursor == "" {
		_, last, err := log.Read(ctx, changes.Query{Look: 1, Limit: 1})
		if err == nil && last == "" {
			return "0"
		}
		return last
	}
	lines, next, err := log.Read(ctx, changes.Query{After: cursor, Limit: 1000})
	for i := range lines {
		e := Event{Kind: Changed, Queue: lines[i].Queue, Instance: lines[i].Node, Change: &lines[i]}
		if l.filter.Takes(&e) {
			to.Add(e)
		}
	}
	if err != nil || next == "" {
		return cursor
	}
	return next
}
