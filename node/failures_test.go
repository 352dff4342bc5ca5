package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/condition"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) has(words ...string) bool {
	for line := range strings.Lines(l.String()) {
		found := true
		for _, word := range words {
			found = found && strings.Contains(line, word)
		}
		if found {
			return true
		}
	}
	return false
}

// TestFailuresAreLogged checks that a failed batch and a burial are warnings, and that a panic is an error with its stack.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var log lines
	start(t, Config{Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}, QueueConfig{Shards: 1}, func(_ context.Context, b *lowkiq.Batch) error {
		switch b.Jobs[0].ID {
		case "panics":
			panic("poison")
		case "dead":
			return lowkiq.Bury{Reason: "no such account"}
		}
		return errBoom
	})
	p.ids("fails", 1)
	p.push(lowkiq.Push{ID: "dead"}, lowkiq.Push{ID: "panics"})
	await(t, "three lines", func() bool {
		return log.has("level=WARN", `msg="batch failed"`, "id=fails0", "err=boom", "jobs=1 of=1") &&
			log.has("level=WARN", `msg="jobs buried"`, "id=dead", `err="no such account"`) &&
			log.has("level=ERROR", `msg="handler panicked"`, "panic=poison", "TestFailuresAreLogged")
	})
}

// TestFailureLog checks that each failure has lines of its own, and that old failures are forgotten.
func TestFailureLog(t *testing.T) {
	t.Parallel()
	var l failureLog
	for i, c := range []struct {
		what string
		ok   bool
	}{{"a", true}, {"a", false}, {"b", true}, {"b", false}, {"a", false}} {
		if _, ok := l.mayLog(c.what); ok != c.ok {
			t.Errorf("%d: got %v, want %v", i, ok, c.ok)
		}
	}
	for i := range maxFailures {
		l.mayLog(fmt.Sprint(i))
	}
	for _, c := range l.of {
		*c = condition.Condition{} // seen long ago
	}
	if sinceBoot() <= condition.Most {
		t.Skip("SKIPPED: the machine was started just now, so nothing was seen long ago")
	}
	if l.mayLog("another"); len(l.of) != 1 {
		t.Errorf("%d failures are known, want one", len(l.of))
	}
}

// TestUnservingRedis checks that the log has few lines about a Redis that refuses all commands, however many operations fail.
// The lines name its answer, and a line reports the end. A refusal of a single operation is reported for that operation.
func TestUnservingRedis(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"BUSY Redis is busy running a script.", "LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down", "READONLY You can't write against a read only replica."} {
		var log lines
		o := &operations{outages: &outages{log: slog.New(slog.NewTextHandler(&log, nil))}, io: t.Context(), changed: func() {}}
		o.log = o.outages.log
		for i := range 300 {
			shard := lowkiq.Shard{Queue: "q", Index: i % 50}
			o.reportFailure("pop", shard, fmt.Errorf("shard %d: %w", shard.Index, redisAnswer(answer)))
		}
		state, _, _ := strings.Cut(answer, " ")
		if got := strings.Count(log.String(), "\n"); got != 1 || !log.has("level=WARN", `msg="redis refuses all commands now"`, "state="+state) {
			t.Errorf("%s: got %d lines of 300 failures, want one that names it: %.500s", state, got, log.String())
		}
		o.outages.reportAnswer()
		for _, c := range o.outages.last {
			if _, ok := c.End(sinceBoot()+outageCalm, outageCalm); !ok {
				t.Errorf("%s: the end is not told", state)
			}
		}
	}
	if state := redisdb.Unserving(redisAnswer("NOPERM this user has no permissions")); state != "" {
		t.Errorf("got %q of a refusal, want none", state)
	}
}

// redisAnswer is an error that Redis answers.
type redisAnswer string

func (r redisAnswer) Error() string { return string(r) }
func (redisAnswer) RedisError()     {}

// TestPassingRefusal checks that a refusal that has passed at the next attempt is a warning. A refusal that lasts is logged as
// an error once, and so is its end.
func TestPassingRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		o := &operations{outages: &outages{}, io: t.Context(), changed: func() {}, log: slog.New(slog.NewTextHandler(&log, nil))}
		o.outages.log = o.log
		shard, err := lowkiq.Shard{Queue: "q"}, redisAnswer("ERR no such flight")
		if !o.reportFailure("ack", shard, err) {
			t.Error("a refusal: got false")
		}
		o.reportSuccess("ack", shard)
		if log.has("level=ERROR") || log.has("no longer refuses") || len(o.stuck.refusalTexts()) != 0 {
			t.Errorf("one that passed: got %s, %q", log.String(), o.stuck.refusalTexts())
		}
		for range 5 {
			o.reportFailure("ack", shard, err)
			time.Sleep(minRefusalTime)
		}
		if got := strings.Count(log.String(), "level=ERROR"); got != 1 || len(o.stuck.refusalTexts()) != 1 {
			t.Errorf("one that lasts: got %d errors and %q, want one of each: %s", got, o.stuck.refusalTexts(), log.String())
		}
		if o.reportSuccess("ack", shard); !log.has("level=INFO", "redis no longer refuses an operation") {
			t.Errorf("its end is not told: %s", log.String())
		}
	})
}
