//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/movein"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestMigratedStates moves real states of Ruby's Lowkiq into a queue. Then the queue holds what Ruby reports: payloads
// with their scores, retry counts, due times to the microsecond, and errors. It moves every eleventh state, and every
// state in make test-all. Package rubyqueue compares the states of a death within a failure.
func TestMigratedStates(t *testing.T) {
	t.Parallel()
	from, to := redistest.StartOld(t), redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: from.Addr()})
	defer rdb.Close()
	client, err := protocol.Open(protocol.Config{Redis: to.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	every, compared := tier.Of(60, 11, 1), 0
	for i, s := range rubystates.LoadAll(t) {
		if i%every != 0 || s.Family == "window_push_back" || s.Family == "window_buried" || s.Family == "redumped" || s.ErrorCodec != "" {
			continue
		}
		commands, err := s.Commands()
		if err != nil {
			t.Fatal(err)
		}
		pipe := rdb.Pipeline()
		pipe.FlushAll(t.Context())
		for _, c := range commands {
			pipe.Do(t.Context(), c...)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		q, err := client.Register(t.Context(), lowkiq.Queue{Name: fmt.Sprint("q", i), Shards: 4})
		if err != nil {
			t.Fatal(err)
		}
		compared += migrate(t, from.URL(), &s, q)
	}
	if want := 2200 / every; compared < want {
		t.Errorf("%d jobs were compared, want %d at least", compared, want)
	}
}

// migrate moves a state into a queue, and compares. It returns how many jobs were compared.
func migrate(t *testing.T, from string, s *rubystates.State, q *protocol.Queue) (compared int) {
	t.Helper()
	old, err := rubyqueue.Open(rubyqueue.Config{URL: from, Timeout: 20 * time.Second, Name: s.QueueName, Shards: s.Shards})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	stays := map[string]bool{}
	c := command{Shards: s.Shards, Payload: movein.Bytes}
	m, err := c.newMover(t.Context(), old, q)
	if err != nil {
		t.Fatal(err)
	}
	m.OnLeft = func(l movein.Left) { stays[l.ID] = true }
	if _, err := m.Move(context.Background()); err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	now := time.Now()
	live := map[string]bool{}
	for _, group := range [][]rubystates.Job{s.Expect.Jobs, s.Expect.Morgue} {
		for _, j := range group {
			id := j.Raw()
			if stays[id] || live[id] {
				continue // in the morgue, too: the list has what waits
			}
			got, found, err := browse.Of(q).Job(t.Context(), id)
			if err != nil || !found {
				t.Errorf("%s: job %q: found %t, %v", s.Name, id, found, err)
				continue
			}
			compared++
			dead := j.UpdatedAt != ""
			live[id] = !dead
			if dead != (got.State == browse.StateMorgue) {
				t.Errorf("%s: job %q is %s", s.Name, id, got.State)
			}
			if wantErr, _ := j.Failure(); got.Error != wantErr {
				t.Errorf("%s: job %q: error %q, want %q", s.Name, id, got.Error, wantErr)
			}
			if got, want := payloadsOf(got.Payloads), rubyPayloads(t, &j); got != want {
				t.Errorf("%s: job %q: payloads\n%.500s\nwant\n%.500s", s.Name, id, got, want)
			}
			if dead {
				continue
			}
			if want := j.RetryCount.String(); strconv.Itoa(got.RetryCount) != want {
				t.Errorf("%s: job %q: retry count %d, want %s", s.Name, id, got.RetryCount, want)
			}
			due, err := strconv.ParseFloat(j.PerformIn, 64)
			if err != nil {
				t.Fatal(err)
			}
			want := time.UnixMicro(int64(due * 1e6))
			if want.Before(now.Add(-time.Minute)) {
				if got.PerformAt.Before(now.Add(-time.Minute)) || got.PerformAt.After(now) {
					t.Errorf("%s: job %q is due at %s, want now: it was due before", s.Name, id, got.PerformAt)
				}
			} else if off := got.PerformAt.Sub(want).Abs(); want.After(now) && off > time.Microsecond {
				t.Errorf("%s: job %q is due at %s, want %s", s.Name, id, got.PerformAt, want)
			}
		}
	}
	return compared
}

func payloadsOf(payloads []lowkiq.Payload) (text string) {
	sorted := slices.Clone(payloads)
	slices.SortFunc(sorted, func(a, b lowkiq.Payload) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), bytes.Compare(a.Data, b.Data))
	})
	for _, p := range sorted {
		text += fmt.Sprintf("%v %q\n", p.Score, p.Data)
	}
	return text
}

// rubyPayloads are what Ruby says of a job's payloads, but for the score of equal ones, which is the smaller one here.
func rubyPayloads(t *testing.T, j *rubystates.Job) string {
	t.Helper()
	var all []lowkiq.Payload
	for _, p := range j.Payloads {
		score, err := strconv.ParseFloat(p.Score, 64)
		if err != nil {
			t.Fatal(err)
		}
		if p.InFlightScore != nil {
			other, err := strconv.ParseFloat(*p.InFlightScore, 64)
			if err != nil {
				t.Fatal(err)
			}
			score = min(score, other)
		}
		all = append(all, lowkiq.Payload{Score: score, Data: p.Bytes})
	}
	return payloadsOf(all)
}
