package web

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// EventStream writes server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type EventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// StreamBeat is how often a stream says something even if nothing happens, so that both ends learn when the other has gone.
const StreamBeat = 15 * time.Second

// NewEventStream begins the answer.
func NewEventStream(w http.ResponseWriter) *EventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // else nginx would keep events back
	return &EventStream{w, http.NewResponseController(w)}
}

// Event sends an event of this name. An error says that the client has gone, or takes nothing.
func (s *EventStream) Event(name, data string) error { return s.write(eventText(name, data)) }

// eventText is an event as a stream has it.
func eventText(name, data string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "event: %s\n", name)
	for line := range strings.SplitSeq(data, "\n") {
		fmt.Fprintf(&text, "data: %s\n", strings.TrimSuffix(line, "\r"))
	}
	text.WriteByte('\n')
	return text.String()
}

// Comment sends what programs pass over.
func (s *EventStream) Comment(text string) error { return s.write(": " + text + "\n\n") }

func (s *EventStream) write(text string) error {
	// Who takes nothing is cut off by its connection (patientConn), or by this, where a connection has several streams. Not every
	// ResponseWriter has deadlines; those of a real server have.
	_ = s.control.SetWriteDeadline(time.Now().Add(writePatience))
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}
