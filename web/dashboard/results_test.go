package dashboard

import (
	"strings"
	"testing"
	"time"
)

// sealed is the token of a result.
func (w *world) sealed(one result) string {
	w.t.Helper()
	token, err := w.pages.results.seal(one)
	must(w.t, err)
	return token
}

func secrets(all ...string) (keys [][]byte) {
	for _, one := range all {
		keys = append(keys, []byte(one))
	}
	return keys
}

// A result is shown by whoever has one of the secrets, for its time, as it was.
func TestResults(t *testing.T) {
	t.Parallel()
	make := func(cluster string, secrets ...[]byte) *results {
		r, err := newResults(cluster, secrets)
		must(t, err)
		return r
	}
	own := make("shop", secrets("new", "old")...)
	done := result{Deed: "requeue-all", Done: "requeued", Queue: "orders", Kind: " ", Back: "/queues/orders", Jobs: true, Changed: 3, SoFar: 4, Left: 5, Cursor: "abc", Trouble: "x"}
	token, err := own.seal(done)
	must(t, err)
	for name, c := range map[string]struct {
		by    *results
		token string
		after time.Duration
		want  bool
	}{
		"itself":          {own, token, 0, true},
		"another node":    {make("shop", secrets("old", "new")...), token, time.Minute, true},
		"another secret":  {make("shop", secrets("old")...), token, 0, false},
		"no secret":       {make("shop"), token, 0, false},
		"another cluster": {make("mall", secrets("new")...), token, 0, false},
		"later":           {own, token, resultLife + time.Second, false},
		"forged":          {own, "A" + token[1:len(token)-1] + "A", 0, false},
		"short":           {own, "AAAA", 0, false},
		"nothing":         {own, "", 0, false},
		"no base64":       {own, "*", 0, false},
	} {
		by := *c.by
		by.now = func() time.Time { return time.Now().Add(c.after) }
		got, ok := by.open(c.token)
		got.At = time.Time{}
		if ok != c.want || ok && got != done {
			t.Errorf("%s: got %+v, %t, want %t", name, got, ok, c.want)
		}
	}
	if strings.Contains(token, "orders") || len(token) > 600 {
		t.Errorf("got %s, want it short and sealed", token)
	}
}

// However long what it tells of, an address is one that proxies take.
func TestResultsAreShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("x", 100_000)
	token := w.sealed(result{Back: "/" + long, Trouble: long})
	if len(token) > 3000 {
		t.Errorf("got %d bytes, want fewer", len(token))
	}
	expect(t, w.get("/results/"+token), 200, "It did not go through", `href="/"`)
}

// Behind a load balancer the page of a result is asked of any node.
func TestResultOfAnotherNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	cfg := w.pages.cfg
	cfg.Secrets = secrets("a secret of all nodes")
	one, err := New(cfg)
	must(t, err)
	other, err := New(cfg)
	must(t, err)
	w.pages = one
	answer := w.post("/do", "do", "requeue", "queue", "orders", "key", keyOf("d1"))
	w.pages = other
	expect(t, w.follow(answer), 200, "<h1>Done</h1>", "1 job requeued")
}
