package limits

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// grouped returns limits by group.
func grouped(limit rules.Limit, ask AskGroups) *Queue {
	q := New(Config{Node: NewSlots(1), AskGroups: ask, Go: func(f func()) { go f() }})
	q.Change(rules.Limit{}, rules.Groups{By: ":", Limit: limit}, 0)
	return q
}

// TestGroupsUnreported checks that a node reports groups to Redis after a lost answer, even if no lane asks again.
func TestGroupsUnreported(t *testing.T) {
	t.Parallel()
	var told []protocol.GroupWant
	answer := errors.New("no answer")
	q := grouped(rules.Limit{Concurrency: 1}, func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
		told = r.Groups
		return make([]protocol.GroupGrant, len(r.Groups)), answer
	})
	a := &groupAsk{ids: []string{"a:1"}, groups: []string{"a:"}, done: make(chan struct{})}
	if !q.groups.addAsk(a) {
		t.Fatal("the first one to ask sends nothing")
	}
	q.sendGroups()
	if <-a.done; a.err == nil {
		t.Error("got no error")
	}
	told, answer = nil, nil
	q.ReportGroups()
	if len(told) != 1 || told[0] != (protocol.GroupWant{Group: "a:"}) {
		t.Errorf("told %+v, want that none of a: is in a call", told)
	}
	told = nil
	if q.ReportGroups(); told != nil {
		t.Errorf("told %+v again", told)
	}
}

// TestGroupsFailedRequest checks that a lane gets an answer if it asks while a request is under way that fails, even if no
// other request follows. An instance that ends waits for its lanes.
func TestGroupsFailedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := grouped(rules.Limit{Concurrency: 2}, func(*protocol.GroupRequest) ([]protocol.GroupGrant, error) {
			time.Sleep(time.Second)
			return nil, errors.New("no answer")
		})
		var asks []*groupAsk
		for i := range 3 {
			a := &groupAsk{ids: []string{fmt.Sprint("a:", i)}, groups: []string{"a:"}, done: make(chan struct{})}
			if q.groups.addAsk(a) {
				go q.sendGroups()
				synctest.Wait()
			}
			asks = append(asks, a)
		}
		time.Sleep(time.Minute)
		for i, a := range asks {
			select {
			case <-a.done:
				if a.err == nil {
					t.Errorf("lane %d: got no error, want that of the request", i)
				}
			default:
				t.Errorf("lane %d waits for ever", i)
			}
		}
	})
}

// TestGroupsOfARuleThatChanges checks that Redis learns the ids in calls by the rule in force, even if that rule came during a
// request by the rule before. Otherwise other nodes could wait for calls that have ended.
func TestGroupsOfARuleThatChanges(t *testing.T) {
	t.Parallel()
	var q *Queue
	var told []protocol.GroupRequest
	q = grouped(rules.Limit{Concurrency: 2}, func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
		if told = append(told, *r); len(told) == 1 {
			after := rules.Limit{Rate: rules.Rate{N: 1, Per: time.Second}, Burst: 1}
			q.Change(rules.Limit{}, rules.Groups{By: ":", Limit: after}, 0)
			return []protocol.GroupGrant{{New: 1}}, nil
		}
		return make([]protocol.GroupGrant, len(r.Groups)), nil
	})
	a := &groupAsk{ids: []string{"a:1"}, groups: []string{"a:"}, done: make(chan struct{})}
	q.groups.addAsk(a)
	q.sendGroups()
	<-a.done
	q.ReportGroups()
	if n := len(told); n != 2 || told[1].Limit.Concurrency != 0 || len(told[1].Groups) != 1 || told[1].Groups[0].Busy != 1 {
		t.Errorf("told %+v, want a second time, by the rule of now", told)
	}
}

// TestGroupsMeanCall checks that granted ids without a call do not count in the mean duration of calls, which decides when ids
// ask again.
func TestGroupsMeanCall(t *testing.T) {
	t.Parallel()
	q := grouped(rules.Limit{Concurrency: 1}, nil)
	g := &q.groups
	g.busy = map[string]int{"a:": 9}
	for _, took := range []time.Duration{80 * time.Millisecond, 0, 0, 80 * time.Millisecond} {
		q.endCalls([]string{"a:"}, took)
	}
	if g.callTime != 80*time.Millisecond {
		t.Errorf("a mean of %s, want 80ms", g.callTime)
	}
}

// waitForMutex waits until a goroutine that runs the function waits for a mutex.
func waitForMutex(t *testing.T, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, function) && strings.Contains(stack, "sync.(*Mutex).Lock") {
				return
			}
		}
	}
	t.Fatalf("%s waits for no mutex after 10s", function)
}

// TestGroupsChangeWhileACallEnds checks that the end of a call is reported by the rules in force, and that the rules do not
// change between the two.
func TestGroupsChangeWhileACallEnds(t *testing.T) {
	t.Parallel()
	busy := map[string]int{} // as Redis has it
	answer := func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
		grants := make([]protocol.GroupGrant, len(r.Groups))
		for i, w := range r.Groups {
			grants[i].New = w.New
			busy[w.Group] = w.Busy + w.New
		}
		return grants, nil
	}
	q := grouped(rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1000}, answer)
	q.cfg.Go = func(f func()) { f() }
	if _, err := q.MayBegin([]string{"a:1"}); err != nil {
		t.Fatal(err)
	}

	g, to := &q.groups, rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}
	g.mu.Lock()
	ended := make(chan struct{})
	go func() {
		q.EndCalls([]string{"a:"}, time.Second)
		close(ended)
	}()
	waitForMutex(t, "(*Queue).EndCalls")
	q.rules.Store(&limited{groups: to}) // as swap does it
	g.reportBusy()
	r, asks := g.nextRequest(to.Limit)
	grants, err := answer(r)
	g.applyGrants(r, asks, grants, err)
	g.asking = false
	if busy["a:"] != 1 {
		t.Errorf("redis counts %v before the end, want one call of a:", busy)
	}
	g.mu.Unlock()
	<-ended
	if q.ReportGroups(); busy["a:"] != 0 {
		t.Errorf("redis counts %v after the end, want none", busy)
	}

	g.mu.Lock()
	changed := make(chan struct{})
	go func() {
		q.Change(rules.Limit{}, rules.Groups{}, 0)
		close(changed)
	}()
	waitForMutex(t, "(*Queue).Change")
	if q.rules.Load().groups != to {
		t.Error("rules are in force before all calls in progress are marked for a report")
	}
	g.mu.Unlock()
	<-changed
}
