package dashboard

import (
	"bytes"
	"net/http"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
)

// ticker is the last of what has happened since a page was opened, the newest first.
type ticker struct {
	Lines []tickerLine
	All   bool // of all queues
	Now   time.Time

	due <-chan time.Time // when the page is to be sent what is new; nil: nothing is
}

// tickerLine is one event.
type tickerLine struct {
	events.Event
	Run    *runLine
	Change *changeLine
	At     time.Time // when the page heard of it
}

const (
	tickerLines = 20
	// tickerEvery is how often a page is sent what is new: a busy queue has thousands of events a second.
	tickerEvery = time.Second
)

// add takes in an event.
func (t *ticker) add(e events.Event, now time.Time) {
	line := tickerLine{Event: e, At: now}
	switch {
	case e.Run != nil:
		line.Run = &runLines([]browse.Run{*e.Run})[0]
	case e.Change != nil:
		line.Change = &changeLines([]changes.Line{*e.Change})[0]
	}
	t.Lines = slices.Insert(t.Lines, 0, line)
	t.Lines = t.Lines[:min(len(t.Lines), tickerLines)]
}

// Node is the one that tells of an event.
func (l tickerLine) Node() string { return nodeOf(l.Instance) }

// From is whose jobs were recovered.
func (l tickerLine) From() string { return nodeOf(l.Recovered.From) }

// watchView is what happens in all queues.
func (d *Dashboard) watchView(_ *snapshot, v access) (view, error) {
	return view{Page: "watch", Title: "Events", Nav: "/watch", Live: liveURL(v.URL), Body: ticker{All: true}}, nil
}

// sendTicker sends what is new to a page.
func (d *Dashboard) sendTicker(t *ticker, out *eventWriter) error {
	t.Now = time.Now()
	var part bytes.Buffer
	if err := d.pages["watch"].ExecuteTemplate(&part, "ticker", t); err != nil {
		d.cfg.Log.Error("part of a page not made", "part", "ticker", "err", err)
		return err
	}
	return out.event("ticker", part.String())
}

// await waits until a page's figures change, and sends what happens meanwhile. It reports whether the stream goes on.
func (d *Dashboard) await(r *http.Request, change <-chan struct{}, beat <-chan time.Time, news <-chan events.Event, t *ticker, out *eventWriter) bool {
	for {
		select {
		case <-change:
			return true
		case <-beat:
			return out.Comment("still here") == nil
		case e := <-news:
			t.add(e, time.Now())
			if t.due == nil {
				t.due = time.After(tickerEvery)
			}
		case <-t.due:
			t.due = nil
			if d.sendTicker(t, out) != nil {
				return false
			}
		case <-r.Context().Done():
			return false
		case <-d.sampler.closed:
			return false
		}
	}
}
