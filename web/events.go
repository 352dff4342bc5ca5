package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Event is one thing that has happened in the cluster; of the fields that are pointers, that of its kind is there.
type Event struct {
	Event     events.Kind `json:"event"`
	Queue     string      `json:"queue,omitempty"`
	Run       *Run        `json:"run,omitempty"`
	Recovered *Recovered  `json:"recovered,omitempty"`
	Change    *Change     `json:"change,omitempty"`
	Missed    *int        `json:"missed,omitempty"` // how many events did not reach the listener; 0: nobody knows
}

// Recovered is a shard whose last owner left jobs in flight.
type Recovered struct {
	Shard    int     `json:"shard"`
	At       float64 `json:"at"`      // unix seconds
	Jobs     int     `json:"jobs"`    // that will be handled again
	Crashes  int     `json:"crashes"` // payloads that went to the morgue, as their workers died of them again and again
	From     string  `json:"from"`    // the instance that had them
	Node     string  `json:"node"`    // that has them now
	Instance string  `json:"instance"`
}

// EventOf is an event as the API shows it.
func EventOf(e *events.Event) Event {
	out := Event{Event: e.Kind, Queue: e.Queue}
	switch {
	case e.Run != nil:
		out.Run = new(RunOf(e.Run))
	case e.Recovered != nil:
		out.Recovered = &Recovered{Shard: e.Shard, At: unix(e.Recovered.At), Jobs: e.Recovered.Jobs, Crashes: e.Recovered.Crashes,
			From: e.Recovered.From, Node: identity.NodeOf(e.Instance), Instance: e.Instance}
	case e.Change != nil:
		out.Change = &ChangesOf([]changes.Line{*e.Change})[0]
	default:
		out.Missed = &e.Missed
	}
	return out
}

// maxEventStreams bounds the streams of events of a node.
const maxEventStreams = 100

// bytesOfStream is what the events that wait for a slow client take, about: most of what they say is shared by all streams. All streams
// together leave most of the memory of requests to those that push.
const bytesOfStream = 256 << 10

var eventsQuery = []string{"queue", "id", "verdict", "for"}

// happens streams what happens from now on, until the client goes, its session or the node ends, or the client takes nothing.
func (a *api) happens(w http.ResponseWriter, r *http.Request) (any, error) {
	filter, length, err := a.eventFilter(r)
	if err != nil {
		return nil, err
	}
	if _, err := a.client.Time(r.Context()); err != nil {
		return nil, err // a stream that hears nothing would look like one of a cluster at rest
	}
	if err := accountOf(r).take(bytesOfStream); err != nil {
		return nil, err
	}
	backlog, leave, ok := a.events.Join(filter.Queue)
	if !ok {
		w.Header().Set("Retry-After", "30")
		return nil, NewProblem(http.StatusServiceUnavailable, "%d streams of events are open already", maxEventStreams)
	}
	defer leave()
	ctx := r.Context()
	if arrived, ok := ctx.Value(arrivalKey{}).(arrival); ok && arrived.ending != nil {
		with, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(arrived.ending, cancel)()
		ctx = with
	}
	if length > 0 {
		with, cancel := context.WithTimeout(ctx, length)
		defer cancel()
		ctx = with
	}
	stream, beat := NewEventStream(w), time.NewTicker(StreamBeat)
	defer beat.Stop()
	if stream.Comment("listening") != nil {
		return nil, nil
	}
	for !over(r) {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-beat.C:
			err = stream.Comment("still here")
		case e := <-backlog.C():
			if text := together(&e, backlog.C(), &filter); text != "" {
				err = stream.write(text)
			}
		}
		if err != nil {
			return nil, nil
		}
	}
	return nil, nil
}

// bytesTogether is about how much of what has happened is sent at once.
const bytesTogether = 16 << 10

// together is an event, and what waits behind it, as a stream has them, but for what the filter leaves out. To send each by itself
// would cost a listener to a busy cluster, and the node, more than all else.
func together(first *events.Event, waiting <-chan events.Event, filter *events.Filter) string {
	var text strings.Builder
	for e := *first; ; {
		if filter.Takes(&e) {
			text.WriteString(e.Text(textOf))
		}
		if text.Len() >= bytesTogether {
			return text.String()
		}
		select {
		case e = <-waiting:
		default:
			return text.String()
		}
	}
}

// textOf is an event as streams have it.
func textOf(e *events.Event) string {
	text, err := json.Marshal(EventOf(e))
	if err != nil { // a line of changes that something else than this has written
		return textOf(&events.Event{Kind: events.Missed, Missed: 1})
	}
	return eventText(string(e.Kind), string(text))
}

// over reports whether the session that allowed a request has ended.
func over(r *http.Request) bool {
	end := auth.SessionEnd(r)
	return !end.IsZero() && !time.Now().Before(end)
}

// eventFilter reads which events are wanted, and for how long; 0: until the client goes.
func (a *api) eventFilter(r *http.Request) (f events.Filter, length time.Duration, err error) {
	values := r.URL.Query()
	query, err := a.runQuery(r, values)
	if err != nil {
		return f, 0, err
	}
	f = events.Filter{Queue: values.Get("queue"), ID: values.Get("id"), Verdicts: query.Verdicts}
	if f.Queue != "" {
		if _, err := a.queueNamed(r.Context(), f.Queue); err != nil {
			return f, 0, err
		}
	}
	if values.Has("for") {
		if length, err = time.ParseDuration(values.Get("for")); err != nil || length <= 0 {
			return f, 0, badField("for", "got %.40q, want a duration, as in 10s", values.Get("for"))
		}
	}
	return f, length, nil
}
