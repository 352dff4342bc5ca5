package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
)

var t0 = time.UnixMicro(1_700_000_000_000_000)

func run(id string, end journal.Verdict) journal.Run {
	return journal.Run{ID: id, Verdict: end, RetryCount: -1, Error: "no stock\nat all",
		Ran: journal.Ran{Due: t0, Popped: t0.Add(time.Millisecond), Began: t0.Add(2 * time.Millisecond), Took: time.Second}}
}

// said collects the messages of a publisher.
type said struct{ messages map[string][]string }

func (s *said) publish(_ context.Context, queue string, text []byte) error {
	if s.messages == nil {
		s.messages = map[string][]string{}
	}
	s.messages[queue] = append(s.messages[queue], string(text))
	return nil
}

// Published events arrive at those who want them and at nobody else.
func TestPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s said
		p := NewPublisher(s.publish)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go p.Run(ctx)
		tell := func() {
			p.Runs("n1/1", "orders", 3, []journal.Run{run("a", journal.Done), run("b c\n", journal.Failed)})
			p.Runs("n1/1", "mails", 0, []journal.Run{run("m", journal.Expired)})
			p.Recovered("n1/1", "orders", 4, Recovery{At: t0, Jobs: 7, Crashes: 1, From: "n2/9"})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		tell()
		if len(s.messages) != 0 || p.Wanted("orders") {
			t.Fatalf("sent %q to nobody", s.messages)
		}
		p.Want("mails")
		tell()
		if len(s.messages[""])+len(s.messages["orders"]) != 0 || len(s.messages["mails"]) != 1 || !p.Wanted("mails") || p.Wanted("orders") {
			t.Fatalf("sent %q, want one to mails", s.messages)
		}
		p.Want("", "orders")
		tell()
		if len(s.messages["orders"]) != 1 || len(s.messages[""]) != 1 || len(s.messages["mails"]) != 1 || !p.Wanted("mails") {
			t.Fatalf("sent %q, want one more to orders and to all", s.messages)
		}
		all, err := parseMessage(s.messages[""][0])
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range all {
			line := fmt.Sprint(e.Kind, " ", e.Queue, "/", e.Shard, " ", e.Instance)
			if e.Run != nil {
				line += fmt.Sprintf(" %q %s %s %v", e.Run.ID, e.Run.Verdict, e.Run.Ended.Sub(t0), e.Run.Shard)
			} else {
				line += fmt.Sprintf(" %+v", *e.Recovered)
			}
			got = append(got, line)
		}
		want := []string{`run orders/3 n1/1 "a" done 1.002s 3`, `run orders/3 n1/1 "b c\n" failed 1.002s 3`, `run mails/0 n1/1 "m" expired 1.002s 0`,
			fmt.Sprintf("recovered orders/4 n1/1 %+v", Recovery{At: t0, Jobs: 7, Crashes: 1, From: "n2/9"})}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		p.Want()
		tell()
		if len(s.messages[""]) != 1 {
			t.Errorf("sent %q to nobody", s.messages[""][1:])
		}
	})
}

// A message has a maximum size, and events that do not fit are counted.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	var s said
	p := NewPublisher(s.publish)
	p.Want("orders")
	many := make([]journal.Run, 1000)
	for i := range many {
		many[i] = run(fmt.Sprint("id", i), journal.Failed)
	}
	for range 5 {
		p.Runs("n1/1", "orders", 1, many)
	}
	p.Recovered("n1/1", "orders", 4, Recovery{At: t0})
	p.sendMessages(t.Context())
	text := s.messages["orders"][0]
	all, err := parseMessage(text)
	if err != nil || len(text) > maxMessage+1024 || len(text) < maxMessage {
		t.Fatalf("%d bytes, %v; want about %d", len(text), err, maxMessage)
	}
	last := all[len(all)-1]
	if last.Kind != Missed || len(all)-1+last.Missed != 5001 {
		t.Errorf("%d events, the last one %+v: want 5001 with those missed", len(all), last)
	}
	p.sendMessages(t.Context())
	if len(s.messages["orders"]) != 1 {
		t.Error("the same was sent again")
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	a := run("a", journal.Done)
	for _, c := range []struct {
		name string
		f    Filter
		want string
	}{
		{"all", Filter{}, "run recovered change missed"},
		{"queue", Filter{Queue: "orders"}, "run recovered change missed"},
		{"another queue", Filter{Queue: "mails"}, "missed"},
		{"id", Filter{ID: "a"}, "run change missed"},
		{"another id", Filter{ID: "b"}, "missed"},
		{"verdict", Filter{Verdicts: []journal.Verdict{journal.Failed, journal.Done}}, "run missed"},
		{"another verdict", Filter{Verdicts: []journal.Verdict{journal.Failed}}, "missed"},
	} {
		var got []string
		for _, e := range []Event{{Kind: Ran, Queue: "orders", Run: &a}, {Kind: Recovered, Queue: "orders", Recovered: &Recovery{}},
			{Kind: Changed, Queue: "orders", Change: &changes.Line{IDs: []string{"a"}}}, {Kind: Missed}} {
			if c.f.Takes(&e) {
				got = append(got, string(e.Kind))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// A slow reader is told how many events it has missed, at the place where it missed them.
func TestBacklog(t *testing.T) {
	t.Parallel()
	b := NewBacklog()
	for i := range backlogSize + 5 {
		b.Add(Event{Kind: Ran, Shard: i})
	}
	for i := range backlogSize {
		if e := <-b.C(); e.Shard != i || e.Kind != Ran {
			t.Fatalf("got %+v, want run %d", e, i)
		}
	}
	b.Add(Event{Kind: Ran, Shard: 1})
	if e := <-b.C(); e.Kind != Missed || e.Missed != 5 {
		t.Errorf("got %+v, want 5 missed", e)
	}
	if e := <-b.C(); e.Kind != Ran || e.Shard != 1 {
		t.Errorf("got %+v, want the run after them", e)
	}
}

func FuzzParse(f *testing.F) {
	one := run("a", journal.Done)
	f.Add(string(appendRuns(appendHead(nil, 3, "n1/1"), "orders", 3, one.Append(nil))))
	f.Add(string(appendRecovery(appendHead(nil, 0, "n1/1"), "orders", 3, &Recovery{At: t0, Jobs: 1})))
	f.Add("0 n\nrun orders 1 99999999999\nx")
	f.Add("-1 n\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseMessage(text)
		if err != nil && !errors.Is(err, errUnreadable) && !errors.Is(err, journal.ErrEntry) {
			t.Errorf("got %v", err)
		}
		for _, e := range all {
			if (e.Kind == Ran) != (e.Run != nil) || (e.Kind == Recovered) != (e.Recovered != nil) {
				t.Errorf("got %+v", e)
			}
		}
	})
}
