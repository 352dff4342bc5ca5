package events

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/changes"
)

const (
	listenFor   = 10 * time.Second // life of a listener's announcement
	listenEvery = 3 * time.Second  // between two announcements
	lookEvery   = time.Second      // between two reads of the list of changes
	silence     = 20 * time.Second // without a message before the connection is tested
	pongWithin  = 5 * time.Second
	tryAgain    = 250 * time.Millisecond
)

// Listen yields the events from now on, until ctx or the loop ends. Nodes notice the listener
// within two renewals of their leases, 2 s by default. Listen survives outages of Redis, and then
// yields an event for the missed events.
func Listen(ctx context.Context, db *redisdb.DB, f Filter) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		ctx, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer group.Wait()
		defer stop()
		heard, changed := NewBacklog(), NewBacklog()
		l := &listener{db: db, filter: f}
		group.Go(func() { l.receiveEvents(ctx, heard) })
		group.Go(func() { l.announceAndPoll(ctx, changed) })
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

// listener is a call of Listen.
type listener struct {
	db     *redisdb.DB
	filter Filter
}

// receiveEvents passes on the events that nodes publish, until ctx ends.
func (l *listener) receiveEvents(ctx context.Context, to *Backlog) {
	for heard := false; ctx.Err() == nil; {
		if l.receiveSession(ctx, to, &heard); heard && ctx.Err() == nil {
			heard = false // once per outage
			to.Add(Event{Kind: Missed})
		}
		select {
		case <-ctx.Done():
		case <-time.After(tryAgain):
		}
	}
}

// receiveSession listens until its connection breaks. It sets heard once it is subscribed, because
// events may be missed after that.
func (l *listener) receiveSession(ctx context.Context, to *Backlog, heard *bool) {
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
			events, _ := parseMessage(news.Payload) // the events of a later release that cannot be parsed are left out
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

// announceAndPoll announces the listener and passes on changes, until ctx ends.
func (l *listener) announceAndPoll(ctx context.Context, to *Backlog) {
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
			cursor = l.forwardChanges(ctx, cursor, to)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// forwardChanges passes on the changes after a cursor and returns the next cursor. The cursor ""
// means the present end.
func (l *listener) forwardChanges(ctx context.Context, cursor string, to *Backlog) string {
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
