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

// StreamBeat is how often a stream sends a comment even without events, so that both ends notice when the other has gone.
const StreamBeat = 15 * time.Second

// NewEventStream begins the answer. All checks must come before, because a stream cannot answer with an error.
func NewEventStream(w http.ResponseWriter) *EventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // without it nginx would delay events
	return &EventStream{w, http.NewResponseController(w)}
}

// Event sends an event of this name. It returns an error if the client has gone, or accepts no more bytes.
func (s *EventStream) Event(name, data string) error { return s.write(eventText(name, data)) }

// eventText returns an event in the form of a stream.
func eventText(name, data string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "event: %s\n", name)
	for line := range strings.SplitSeq(data, "\n") {
		fmt.Fprintf(&text, "data: %s\n", strings.TrimSuffix(line, "\r"))
	}
	text.WriteByte('\n')
	return text.String()
}

// Comment sends a comment, which clients ignore.
func (s *EventStream) Comment(text string) error { return s.write(": " + text + "\n\n") }

func (s *EventStream) write(text string) error {
	// A client that accepts no bytes is cut off by its connection (patientConn). If the connection has several streams, this deadline
	// does it. Not every ResponseWriter has deadlines; those of a real server have.
	_ = s.control.SetWriteDeadline(time.Now().Add(writePatience))
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}
