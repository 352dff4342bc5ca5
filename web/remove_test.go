package web

import (
	"testing"

	"github.com/lowkiq/lowkiq/status"
)

// Who handles a queue is said of it, and keeps it from being deleted.
func TestHandled(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	expect(t, w.do("GET", "/api/v1/queues/mail", ""), 200, `"unhandled":true`)
	w.node.handled = status.Handled{{Node: "n1", Name: "n1", Queues: map[string]int{"mail": 0}}}
	expect(t, w.do("GET", "/api/v1/queues/mail", ""), 200, `"unhandled":false`)
	expect(t, w.do("POST", "/api/v1/queues/mail/delete", `{"force":true}`), 409, `queue \"mail\": the queue is handled by n1; remove it from their configurations`)
	expect(t, w.do("POST", "/api/v1/queues/mail/delete", `{"dry_run":true}`), 409, "handled by n1")
	w.node.handled = status.Handled{{Node: "n2", Name: "n2/01K.1", Unreadable: true}}
	expect(t, w.do("GET", "/api/v1/queues/mail", ""), 200, `"unhandled":false`)
	expect(t, w.do("POST", "/api/v1/queues/mail/delete", ""), 409, "n2 (its lease cannot be read)")
	w.node.handled = nil
	expect(t, w.do("POST", "/api/v1/queues/mail/delete", ""), 200, `"deleted":true`)
	expect(t, w.do("POST", "/api/v1/queues/mail/delete", ""), 200, `"before":true`)
	expect(t, w.do("GET", "/api/v1/queues/mail", ""), 404, `unknown queue \"mail\" (known: orders)`)
	expect(t, w.do("POST", "/api/v1/queues/mail/jobs", `{"id":"a"}`), 404, "unknown queue")
	expect(t, w.do("GET", "/api/v1/queues", ""), 200, `{"queues":[{"name":"orders"`)
}
