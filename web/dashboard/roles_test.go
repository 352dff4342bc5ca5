package dashboard

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

const (
	readToken  = "read-token-0123456789"
	adminToken = "admin-token-0123456789"
)

// node puts the pages behind tokens, as a node does.
func (w *world) node(tokens auth.Tokens) http.Handler {
	w.t.Helper()
	handler, err := web.New(fakeNode{w: w}, web.Config{
		Cluster: fakeNode{w: w},
		Pages:   func(web.Node, web.Config) (web.Pages, error) { return w.pages, nil }, Tokens: tokens,
		Names: []string{"example.com"}, // httptest.NewRequest's
	})
	must(w.t, err)
	return handler
}

func by(target, token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

// logIn gets a session from a node.
func logIn(t *testing.T, node http.Handler) *http.Cookie {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader("token="+readToken))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer := httptest.NewRecorder()
	node.ServeHTTP(answer, r)
	cookies := answer.Result().Cookies()
	if len(cookies) != 1 {
		t.Fatalf("got %d and %d cookies, want a session", answer.Code, len(cookies))
	}
	return cookies[0]
}

func withSession(r *http.Request, session *http.Cookie) *http.Request {
	r.AddCookie(session)
	return r
}

// changing reports whether a page, or a part of one, has anything that changes something.
func changing(page string) bool {
	for _, sign := range []string{`method="post"`, `name="do"`, `name="one"`, `name="key"`, "data-check-all", ">Do</span>"} {
		if strings.Contains(page, sign) {
			return true
		}
	}
	return false
}

// A page offers what the sender of its request may do, and nothing that would be refused.
func TestPagesOfferWhatIsAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	w.startWorkflow(hostileWorkflow)
	closed, open := w.node(auth.Tokens{Read: []string{readToken}, Admin: []string{adminToken}}), w.node(auth.Tokens{})
	for target, offers := range map[string]bool{
		"/": false, "/shards": false, "/plan": false, "/redis": false, "/queues/orders/in-flight": false, "/nowhere": false,
		"/queues/orders": true, "/queues/orders/jobs": true, "/queues/orders/blocked": true, "/queues/orders/morgue": true,
		"/queues/orders/errors": true, "/queues/orders/rules": true, "/queues/orders/runs": false, "/changes": false, "/watch": false, "/queues/orders/days": false, "/queues/orders/job?id=f1": true, "/nodes": true, "/recurring": true, "/recurring/sync": true, "/workflows": false, workflowLink(hostileWorkflow): true, "/result?done=requeue-all&queue=orders&changed=9": false,
	} {
		t.Run(target, func(t *testing.T) {
			for _, c := range []struct {
				who     string
				handler http.Handler
				token   string
				offers  bool
			}{{"nobody is asked", open, "", offers}, {"admin", closed, adminToken, offers}, {"reader", closed, readToken, false}} {
				answer := httptest.NewRecorder()
				c.handler.ServeHTTP(answer, by(target, c.token).WithContext(t.Context()))
				page := answer.Body.String()
				if changing(page) != c.offers {
					t.Errorf("%s: got buttons %t, want %t; page %s", c.who, !c.offers, c.offers, page)
				}
				if got := strings.Contains(page, "need the admin token"); got != (c.who == "reader") {
					t.Errorf("%s: got the word on the token %t", c.who, got)
				}
				for _, objection := range objections(page) {
					t.Errorf("%s: %s", c.who, objection)
				}
			}
		})
	}
}

// The live parts of a page are made from what all share, and yet offer what each may do.
func TestEventsOfferWhatIsAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	server := httptest.NewServer(w.node(auth.Tokens{Read: []string{readToken}, Admin: []string{adminToken}}))
	t.Cleanup(server.Close)
	for _, of := range []string{"/queues/orders", "/nodes"} {
		for _, c := range []struct {
			token  string
			offers bool
		}{{readToken, false}, {adminToken, true}, {readToken, false}} {
			r := by(server.URL+"/events?of="+of, c.token)
			r.RequestURI = ""
			answer, err := http.DefaultClient.Do(r.WithContext(t.Context()))
			must(t, err)
			t.Cleanup(func() { _ = answer.Body.Close() })
			lines := bufio.NewScanner(answer.Body)
			lines.Buffer(nil, 1<<20)
			if name, data := nextEvent(t, lines); changing(data) != c.offers || name == "trouble" {
				t.Errorf("%s with %s: got buttons %t, want %t; event %s", of, c.token, !c.offers, c.offers, data)
			}
		}
	}
}
