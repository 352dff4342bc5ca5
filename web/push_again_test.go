package web

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A push of 600 payloads of one id, of more bytes than one pipeline takes: any one request to
// Redis is lost, executed or not, and the client repeats the push until all of it is stored. Its
// payloads are handed over in push order (I3).
func TestPushAgainKeepsOrder(t *testing.T) {
	tier.Usual(t) // each request that is lost is 9 MB pushed twice, so a run loses a third of them
	t.Parallel()
	const n = 600
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	w := newWorld(t, proxy.URL())
	must(t, w.client.DB().Load(t.Context())) // or the first request comes twice
	orders, err := w.client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 1})
	must(t, err)
	claim, err := orders.Shard(0).Claim(t.Context(), "n1/01J.1", protocol.Fresh, protocol.Owner{})
	must(t, err)
	var body strings.Builder
	for i := range n {
		fmt.Fprintf(&body, "{\"id\":\"hot\",\"payload\":\"%0*d\"}\n", 14_500, i)
	}
	push := func() (ok bool) {
		answer := httptest.NewRecorder() // not w.do: to hold so much against openapi.yaml takes seconds
		w.handler.ServeHTTP(answer, httptest.NewRequest("POST", ordersPath+"jobs", strings.NewReader(body.String())))
		if answer.Code == 503 {
			return false
		}
		expect(t, answer, 200)
		var got struct{ Results []struct{ OK, Retry bool } }
		must(t, json.Unmarshal(answer.Body.Bytes(), &got))
		ok = true
		for i, result := range got.Results {
			if ok = ok && result.OK; !result.OK && !result.Retry {
				t.Fatalf("job %d is neither stored nor to be tried again", i)
			}
		}
		return ok
	}
	// drain returns how many payloads were handled in order, going on after the first done.
	drain := func(done int) int {
		for {
			popped, err := claim.Pop(t.Context(), protocol.PopRequest{IDs: 100, Bytes: 16 << 20})
			must(t, err)
			if len(popped.Jobs) == 0 {
				return done
			}
			for _, job := range popped.Jobs {
				for _, p := range job.Payloads {
					got, _ := strconv.Atoi(strings.Trim(string(p.Data), `"`))
					if got > done {
						t.Fatalf("got payload %d, want %d before it", got, done)
					} else if got == done {
						done++
					}
				}
			}
			_, err = claim.Ack(t.Context(), protocol.Acks{Flight: popped.Flight, Rest: true})
			must(t, err)
		}
	}
	if !push() || drain(0) != n {
		t.Fatal("got a push without a fault that is not handled in order")
	}
	// The client also writes its counts of pushes now and then, which nobody waits for.
	scripts := w.client.DB().Scripts
	stores := func(words []string) bool {
		return len(words) > 1 && strings.EqualFold(words[0], "evalsha") && (words[1] == scripts.Push.SHA() || words[1] == scripts.PushEach.SHA())
	}
	step := tier.Of(3, 3, 1) // odd: a request after a reply
	for lose := 1 + rand.IntN(step); ; lose += step {
		count := 0
		cut := []func(func([]string) bool){proxy.CutRequestOf, proxy.CutReplyOf}[lose%2]
		cut(func(words []string) bool {
			if stores(words) {
				count++
			}
			return count == lose
		})
		cuts := proxy.Cuts()
		if push() {
			if lose < 8 || proxy.Cuts() != cuts {
				t.Fatalf("request %d: got a push that succeeds, want it to fail", lose)
			}
			return // there are no more requests to lose
		}
		done := drain(0)
		if !push() {
			t.Fatal("got a push that fails, want it to succeed once Redis is there")
		}
		if done = drain(done); done != n {
			t.Fatalf("request %d lost: got %d payloads handled, want %d", lose, done, n)
		}
	}
}
