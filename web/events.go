package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Event is an event of the cluster. Among run, recovered, change and missed it has the field of its kind.
type Event struct {
	Event     events.Kind `json:"event"`
	Queue     string      `json:"queue,omitempty"`
	Run       *Run        `json:"run,omitempty"`
	Recovered *Recovered  `json:"recovered,omitempty"`
	Change    *Change     `json:"change,omitempty"`
	Missed    *int        `json:"missed,omitempty"` // number of events that did not reach the listener; 0 if it is unknown
}

// Recovered is a shard whose last owner left jobs in flight.
type Recovered struct {
	Shard    int     `json:"shard"`
	At       float64 `json:"at"`      // unix seconds
	Jobs     int     `json:"jobs"`    // jobs that were in flight and will be handled again
	Crashes  int     `json:"crashes"` // payloads that went to the morgue because their workers died of them repeatedly
	From     string  `json:"from"`    // the instance that had the jobs
	Node     string  `json:"node"`    // that has the shard now
	Instance string  `json:"instance"`
}

// EventOf returns an event in the form of the API.
func EventOf(e *events.Event) Event {
	out := Event{Event: e.Kind, Queue: e.Queue}
	switch {
	case e.Run != nil:
		out.Run = new(RunOf(e.Run))
	case e.Recovered != nil:
		out.Recovered = &Recovered{Shard: e.Shard, At: unixSeconds(e.Recovered.At), Jobs: e.Recovered.Jobs, Crashes: e.Recovered.Crashes,
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

// bytesOfStream is about the memory of the events that wait for a slow client. It is small, because all streams share the contents of
// events. All streams together leave the larger part of the requests' memory to pushes.
const bytesOfStream = 256 << 10

// streamEvents streams all events from now on. It ends with the client, its session or the node, and if the client stops reading.
// The guard has judged the request only at its beginning. So the stream itself checks with each event and each beat whether the
// session has ended, and outlives it by StreamBeat at most.
func (a *api) streamEvents(w http.ResponseWriter, r *http.Request) (any, error) {
	filter, length, err := a.eventFilter(r)
	if err != nil {
		return nil, err
	}
	if _, err := a.client.Time(r.Context()); err != nil {
		return nil, err // without Redis a stream would look as if the cluster were at rest
	}
	if err := memory.Take(r.Context(), bytesOfStream); err != nil {
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
	for !auth.SessionOver(r) {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-beat.C:
			err = stream.Comment("still here")
		case e := <-backlog.C():
			if text := joinEvents(&e, backlog.C(), &filter); text != "" {
				err = stream.write(text)
			}
		}
		if err != nil {
			return nil, nil
		}
	}
	return nil, nil
}

// bytesTogether is about the number of bytes that are sent at once.
const bytesTogether = 16 << 10

// joinEvents returns the text of an event and of the events that wait behind it, without those that the filter leaves out. In a busy
// cluster a separate write for each event would be the largest cost of a stream.
func joinEvents(first *events.Event, waiting <-chan events.Event, filter *events.Filter) string {
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

// textOf returns the text of an event in a stream. An event that cannot be written is reported as missed, so that the listener knows
// of a gap.
func textOf(e *events.Event) string {
	text, err := json.Marshal(EventOf(e))
	if err != nil { // a line of changes that another program has written
		return textOf(&events.Event{Kind: events.Missed, Missed: 1})
	}
	return eventText(string(e.Kind), string(text))
}

// eventFilter reads the filter of a stream and its length, which is 0 if the stream ends with the client.
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
			return f, 0, badField("for", "got %.40q, must be a duration, as in 10s", values.Get("for"))
		}
	}
	return f, length, nil
}
