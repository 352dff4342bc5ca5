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

// ticker has the latest events since a page was opened, newest first.
type ticker struct {
	Lines []tickerLine
	All   bool // events of all queues
	Now   time.Time

	due <-chan time.Time // when the page gets the new events, nil if there are none
}

// tickerLine is an event.
type tickerLine struct {
	events.Event
	Run    *runLine
	Change *changeLine
	At     time.Time // when the stream got it
}

const (
	tickerLines = 20
	// tickerEvery is how often a page gets new events. A busy queue has thousands of events a second.
	tickerEvery = time.Second
)

// add adds an event and drops the oldest beyond tickerLines.
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

// Node returns the node that reported the event.
func (l tickerLine) Node() string { return nodeOf(l.Instance) }

// From returns the node that had the recovered jobs before.
func (l tickerLine) From() string { return nodeOf(l.Recovered.From) }

// watchView returns the page with the events of all queues.
func (d *Dashboard) watchView(_ *snapshot, v access) (view, error) {
	return view{Page: "watch", Title: "Events", Nav: "/watch", Live: liveURL(v.URL), Body: ticker{All: true}}, nil
}

// sendTicker sends the latest events to a page, all of them each time. So a page that has missed a part is right again
// with the next part.
func (d *Dashboard) sendTicker(t *ticker, out *eventWriter) error {
	t.Now = time.Now()
	var part bytes.Buffer
	if err := d.pages["watch"].ExecuteTemplate(&part, "ticker", t); err != nil {
		d.cfg.Log.Error("part of a page not made", "part", "ticker", "err", err)
		return err
	}
	return out.event("ticker", part.String())
}

// awaitNews waits until a page's figures change or a beat is due, and sends new events meanwhile. It reports whether the stream
// goes on.
func (d *Dashboard) awaitNews(r *http.Request, change <-chan struct{}, beat <-chan time.Time, news <-chan events.Event, t *ticker, out *eventWriter) bool {
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
