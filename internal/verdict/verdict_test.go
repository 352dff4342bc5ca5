package verdict

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

var errBoom = errors.New("boom")

func TestDecideJob(t *testing.T) {
	t.Parallel()
	rules := func(most int) Rules {
		return Rules{Rules: rules.Rules{MaxRetryCount: most, Exhausted: protocol.Block}, FormatError: func(err error) string { return "<" + err.Error() + ">" }, RetryFunc: func(count int) time.Duration { return time.Duration(count+1) * time.Second }}
	}
	retry := func(count int) verdict {
		return verdict{err: errBoom, nack: protocol.Nack{Flight: 7, ID: "a", Kind: protocol.Retry, RetryCount: count, Delay: time.Duration(count+1) * time.Second, Error: "<boom>"}}
	}
	exhausted := func(count int) verdict {
		return verdict{err: errBoom, exhausts: true, burial: protocol.Burial{Flight: 7, ID: "a", Policy: protocol.Block, RetryCount: count, Error: "<boom>"}}
	}
	postpone := lowkiq.Postpone{After: time.Minute, Reason: "busy"}
	postponed := func(err error, after time.Duration) verdict {
		var p lowkiq.Postpone
		errors.As(err, &p)
		return verdict{err: err, nack: protocol.Nack{Flight: 7, ID: "a", Kind: protocol.Postpone, RetryCount: 3, Delay: after, Error: p.Reason}}
	}
	buried, ages := lowkiq.Bury{Reason: "no such account"}, lowkiq.Postpone{After: math.MaxInt64}
	some := func(payloads ...int) error { return lowkiq.Bury{Reason: "no", Payloads: payloads} }
	buriedAt := func(err error, places ...int) verdict {
		return verdict{err: err, exhausts: true, burial: protocol.Burial{Flight: 7, ID: "a", Policy: protocol.Bury, Places: places, RetryCount: 4, Error: "<no>"}}
	}
	none := errors.New("the handler buries the payloads at [1 3] of a job that has 3: no")
	wrapped := fmt.Errorf("endpoint: %w", postpone)
	for _, c := range []struct {
		name  string
		most  int
		count int // as stored
		err   error
		want  verdict
	}{
		{"done", 25, -1, nil, verdict{done: true}},
		{"first failure", 25, -1, errBoom, retry(0)},
		{"24th retry", 25, 23, errBoom, retry(24)},
		{"limit reached", 25, 24, errBoom, exhausted(25)},
		{"beyond a limit that was lowered", 3, 10, errBoom, exhausted(11)},
		{"one retry: first failure", 1, -1, errBoom, retry(0)},
		{"one retry: second failure", 1, 0, errBoom, exhausted(1)},
		{"no retries", -1, -1, errBoom, exhausted(0)},
		{"postponed", 25, 3, postpone, postponed(postpone, time.Minute)},
		{"postponed, wrapped", 25, 3, wrapped, postponed(wrapped, time.Minute)},
		{"postponed at the limit", -1, 3, postpone, postponed(postpone, time.Minute)},
		{"buried", 25, -1, buried, verdict{err: buried, exhausts: true, burial: protocol.Burial{Flight: 7, ID: "a", Policy: protocol.Bury, RetryCount: 0, Error: "<no such account>"}}},
		{"some are buried", 25, 3, some(2, 0, 2), buriedAt(some(2, 0, 2), 0, 2)},
		{"all are buried by their places", 25, 3, some(2, 1, 0), buriedAt(some(2, 1, 0))},
		{"a payload is buried that is not there", 25, 3, some(1, 3), verdict{err: none, nack: protocol.Nack{
			Flight: 7, ID: "a", Kind: protocol.Retry, RetryCount: 4, Delay: 5 * time.Second, Error: "<" + none.Error() + ">"}}},
		{"postponed for ever", 25, 3, ages, postponed(ages, maxRetry*time.Second)},
		{"postponed into the past", 25, 3, lowkiq.Postpone{After: -1}, postponed(lowkiq.Postpone{After: -1}, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rules(c.most)
			got := decideJob(&r, 7, &lowkiq.Job{ID: "a", RetryCount: c.count, Payloads: make([]lowkiq.Payload, 3)}, c.err)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDecideBatch(t *testing.T) {
	t.Parallel()
	batch := &lowkiq.Batch{Flight: 3, Jobs: []lowkiq.Job{{ID: "a", RetryCount: -1}, {ID: "b", RetryCount: -1}, {ID: "c", RetryCount: -1}}}
	late := errors.Join(fmt.Errorf("%w: 1s", lowkiq.ErrTimeout), nil)
	for _, c := range []struct {
		name   string
		answer error
		want   string // per job: d done, r retried, p postponed, b buried
	}{
		{"all done", nil, "ddd"},
		{"all failed", errBoom, "rrr"},
		{"late", late, "rrr"},
		{"one failed", lowkiq.Failed{"b": errBoom}, "drd"},
		{"one failed, wrapped", fmt.Errorf("x: %w", lowkiq.Failed{"b": errBoom}), "drd"},
		{"one failed, one postponed", lowkiq.Failed{"a": errBoom, "c": lowkiq.Postpone{After: 1}}, "rdp"},
		{"nobody failed", lowkiq.Failed{}, "ddd"},
		{"an id that is not in the batch", lowkiq.Failed{"z": errBoom}, "rrr"},
		{"a stranger is buried", lowkiq.Failed{"z": lowkiq.Bury{}}, "rrr"},
		{"an id that is and one that is not", lowkiq.Failed{"a": errBoom, "z": errBoom}, "rrr"},
		{"an id without an error", lowkiq.Failed{"a": nil}, "rdd"},
		{"joined with another error", errors.Join(lowkiq.Failed{"b": lowkiq.Postpone{After: 1}}, errBoom), "rpr"},
		{"joined with nothing", errors.Join(lowkiq.Failed{"b": errBoom}, nil), "drd"},
		{"wrapped with another error", fmt.Errorf("%w, %w", errBoom, lowkiq.Failed{"b": errBoom}), "rrr"},
		{"one buried", lowkiq.Failed{"b": lowkiq.Bury{Reason: "no"}, "c": errBoom}, "dbr"},
		{"buried by a pointer", fmt.Errorf("x: %w", &lowkiq.Bury{}), "bbb"},
		{"one buried by a pointer", lowkiq.Failed{"b": &lowkiq.Bury{Reason: "no"}, "c": errBoom}, "dbr"},
		{"all buried", fmt.Errorf("x: %w", lowkiq.Bury{}), "bbb"},
		{"all postponed", lowkiq.Postpone{After: 1}, "ppp"},
		{"all postponed by a pointer", &lowkiq.Postpone{After: 1}, "ppp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := Rules{Rules: rules.Rules{MaxRetryCount: 25, Exhausted: protocol.Skip}, FormatError: error.Error}
			got := ""
			for _, v := range decideJobs(&rules, batch, c.answer) {
				switch {
				case v.done:
					got += "d"
				case v.burial.Policy == protocol.Bury:
					got += "b"
				case v.nack.Kind == protocol.Postpone:
					got += "p"
				case v.nack.Kind == protocol.Retry:
					got += "r"
				}
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestFailedForGood checks which jobs did not go to the morgue by a failure: jobs that people bury or delete, expired
// jobs, and jobs that wait for a person.
func TestFailedForGood(t *testing.T) {
	t.Parallel()
	batch := &lowkiq.Batch{Flight: 3}
	failed := lowkiq.Failed{}
	add := func(id string, err error) {
		batch.Jobs = append(batch.Jobs, lowkiq.Job{ID: id, RetryCount: -1, Payloads: []lowkiq.Payload{{}, {}}})
		failed[id] = err
	}
	add("person buries", &cancelledRun{protocol.Cancellation{Then: protocol.ThenBury}})
	add("person deletes", &cancelledRun{protocol.Cancellation{Then: protocol.ThenDelete}})
	add("expired", &expired{places: []int{0}})
	add("dropped", &expired{to: rules.ExpireDrop, places: []int{0}})
	add("out of retries", errBoom)
	add("handler buries", lowkiq.Bury{Reason: "no"})
	for policy, want := range map[protocol.Policy]string{
		protocol.Skip: "out of retries, handler buries; ", protocol.Bury: "out of retries, handler buries; ", protocol.Block: "handler buries; out of retries",
	} {
		all := Decide(&Rules{Rules: rules.Rules{Exhausted: policy}, FormatError: error.Error}, batch, failed)
		names := func(list []protocol.Burial) string {
			var ids []string
			for _, b := range list {
				ids = append(ids, b.ID)
			}
			return strings.Join(ids, ", ")
		}
		buried, blocked := all.FailedForGood()
		if got := names(buried) + "; " + names(blocked); got != want {
			t.Errorf("%s: got %q, want %q", policy, got, want)
		}
	}
}

func TestDefaultRetryIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ count, least, most int }{
		{0, 15, 45}, {1, 16, 76}, {2, 31, 121}, {24, 331791, 331791 + 750},
	} {
		for range 1000 {
			least, most := time.Duration(c.least)*time.Second, time.Duration(c.most)*time.Second
			if got := (&Rules{}).retryIn(c.count); got < least || got >= most {
				t.Fatalf("retryIn(%d) is %s, want %s to %s", c.count, got, least, most)
			}
		}
	}
	// count^4 s does not fit a time.Duration here: it must not become a retry at once.
	for _, count := range []int{310, 1000, 1_000_000} {
		if got, want := (&Rules{}).retryIn(count), rules.LongestDelay; got != want {
			t.Errorf("retryIn(%d) is %s, want %s", count, got, want)
		}
	}
}

func TestDecodedFailsItsJobOnly(t *testing.T) {
	t.Parallel()
	decode := func(p []byte) ([]byte, error) {
		if string(p) == "bad" {
			return nil, errBoom
		}
		return p, nil
	}
	job := func(id, payload string) lowkiq.Job {
		return lowkiq.Job{ID: id, Payloads: []lowkiq.Payload{{Data: []byte(payload)}}}
	}
	busy := lowkiq.Postpone{After: 1, Reason: "busy"}
	for _, c := range []struct {
		name    string
		payload string // of b; a's is good
		answer  error
		want    error
	}{
		{"all good, done", "good", nil, nil},
		{"all good, failed", "good", errBoom, errBoom},
		{"one bad, the rest done", "bad", nil, lowkiq.Failed{"b": errBoom}},
		{"one bad, the rest failed", "bad", busy, lowkiq.Failed{"a": busy, "b": errBoom}},
		{"one bad, some of the rest failed", "bad", lowkiq.Failed{"a": busy}, lowkiq.Failed{"a": busy, "b": errBoom}},
		{"one bad, some failed, wrapped", "bad", fmt.Errorf("x: %w", lowkiq.Failed{}), lowkiq.Failed{"b": errBoom}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Decoded(decode, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
				if got, want := len(b.Jobs), 2; c.payload == "bad" && got != want-1 || c.payload == "good" && got != want {
					t.Errorf("the handler got %d jobs", got)
				}
				return c.answer
			}))
			got := h.Handle(t.Context(), &lowkiq.Batch{Jobs: []lowkiq.Job{job("a", "good"), job("b", c.payload)}})
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// What a handler has left behind may ask what was answered while the node deals with that.
func TestAnswersAreTheNodes(t *testing.T) {
	t.Parallel()
	rules := Rules{Rules: rules.Rules{State: -1}, Encode: func(data []byte) ([]byte, error) { return append([]byte("secret "), data...), nil }}
	batch := lowkiq.NewBatch(lowkiq.Shard{}, 1, 7, []lowkiq.Job{{ID: "a"}})
	batch.Answer("a").Result([]byte("r")).State([]byte("s"))
	said := batch.EndAnswers()
	var left sync.WaitGroup
	left.Go(func() {
		for range 1000 {
			for id, one := range batch.Answers() {
				if string(one.Result) != "r" {
					t.Errorf("%s: got %q from Answers, want what the handler said", id, one.Result)
				}
			}
			batch.Answer("a").Result([]byte("late"))
		}
	})
	for range 1000 {
		if err := rules.CheckAnswers(batch, said, nil); err != nil {
			t.Fatal(err)
		}
		said["a"] = lowkiq.Answered{Result: []byte("r"), State: []byte("s"), Stated: true}
	}
	left.Wait()
	if err := rules.CheckAnswers(batch, said, nil); err != nil || string(said["a"].Result) != "secret r" || string(said["a"].State) != "secret s" {
		t.Errorf("got %v, %v, want what the handler answered, encoded", said, err)
	}
}

// TestExpiredPlaces checks which payloads of a job have expired.
func TestExpiredPlaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	header := func(d time.Duration) lowkiq.Header {
		return lowkiq.Header(`{"expires":"` + now.Add(d).Format(time.RFC3339) + `"}`)
	}
	ago := func(d time.Duration) float64 { return float64(now.Add(-d).Unix()) }
	for _, c := range []struct {
		name     string
		after    time.Duration
		due      time.Duration // before now
		payloads []lowkiq.Payload
		want     []int
	}{
		{"no rule, no header", 0, 1000 * time.Hour, []lowkiq.Payload{{}, {Header: `{"tag":"expires"}`}}, nil},
		{"header", 0, 0, []lowkiq.Payload{{Header: header(-time.Second)}, {Header: header(time.Second)}, {Header: header(0)}}, []int{0, 2}},
		{"header in seconds", 0, 0, []lowkiq.Payload{{Header: `{"expires":"1699999999.5"}`}, {Header: `{"expires":"1700000001"}`}}, []int{0}},
		{"a header that says nothing", time.Hour, time.Minute, []lowkiq.Payload{{Header: `{"expires":"soon"}`}, {Header: `{"expires`}}, nil},
		{"the rule", time.Hour, time.Hour, []lowkiq.Payload{{}, {}}, []int{0, 1}},
		{"not yet", time.Hour, time.Hour - 1, []lowkiq.Payload{{}}, nil},
		{"the header wins", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Header: header(time.Minute)}, {}}, []int{1}},
		{"pushed later than the job was due", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Score: ago(2 * time.Hour)}, {Score: ago(time.Minute)}}, []int{0}},
		{"pushed before it was due", time.Hour, time.Minute, []lowkiq.Payload{{Score: ago(2 * time.Hour)}}, nil},
		{"scores that are no times", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Score: 7}, {Score: -1}, {Score: 1.7e12}, {Score: 1e300}}, []int{0, 1, 2, 3}},
	} {
		r, job := Rules{Rules: rules.Rules{Expire: rules.Expire{After: c.after}}}, lowkiq.Job{PerformAt: now.Add(time.Hour), WaitingSince: now.Add(-c.due), Payloads: c.payloads}
		if got := r.expiredPlaces(&job, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
