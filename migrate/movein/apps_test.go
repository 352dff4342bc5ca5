package movein

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/wire"
)

// app is what an app of Ruby's Lowkiq has of its own: how it dumps and loads payloads, and what it pushes.
type app struct {
	form       Form
	dump, load string // "": as the gem does
	payloads   string // an array
}

var apps = map[string]app{
	"objects":      {Bytes, "", "", `[{ order_id: 7 }, Time.at(0).utc, '', "Zo\u00eb"]`},
	"symbols":      {Bytes, "JSON.generate(x)", "JSON.parse(x, symbolize_names: true)", `[{ order_id: 7 }, 5, nil, [1.5, 'a b'], '']`},
	"gzip":         {Bytes, "Zlib::Deflate.deflate(Marshal.dump(x))", "Marshal.load(Zlib::Inflate.inflate(x))", `[{ order_id: 7 }, '']`},
	"plain bytes":  {Bytes, "x.to_s", "x", `['5', 'null', '', '""', "Zo\u00eb", '{"a": 1, "a": 2}', '1.000000000000000000001', '{"$base64":"eA=="}']`},
	"ids only":     {JSON, "", "", `['']`},
	"ids, dumped":  {Bytes, "", "", `['']`},
	"plain data":   {JSON, "", "", `[{ 'a' => [1, nil, "Zo\u00eb", 1.5] }, '', 5, nil]`},
	"ids, in JSON": {Bytes, "JSON.generate(x)", "JSON.parse(x)", `['']`},
}

// script is a program of the app: perform writes down what it gets.
func (a app) script(t *testing.T, more string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so that no app of Ruby's Lowkiq was moved; install ruby to move some")
	}
	worker, err := filepath.Abs("../../examples/ruby/worker.rb")
	if err != nil {
		t.Fatal(err)
	}
	text := "Encoding.default_external = 'UTF-8'\nrequire 'json'\nrequire 'zlib'\nrequire " + fmt.Sprintf("%q", worker) + `
def shown(payloads) payloads.map { |p| [p, (p.encoding if p.is_a?(String))] }.inspect end
module Lowkiq; class << self; attr_accessor :dump_payload, :load_payload; end; end
Lowkiq.dump_payload = Marshal.method(:dump)
Lowkiq.load_payload = Marshal.method(:load)
module W; def self.perform(batch) puts shown(batch.fetch('a')) end; end
`
	if a.dump != "" {
		text += "Lowkiq.dump_payload = ->(x) { " + a.dump + " }\nLowkiq.load_payload = ->(x) { " + a.load + " }\n"
	}
	cmd := exec.CommandContext(t.Context(), path, "-e", text+more)
	cmd.Env = nodebin.Env("LC_ALL=C.UTF-8") // Ruby takes the text of -e for that of the locale
	return cmd
}

// Apps whose perform_in is 60, which is now for Ruby, move: perform gets what it got before, and what comes back is what it
// was.
func TestAppsMoveAndComeBack(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	n := 0
	for name, a := range apps {
		out, err := a.script(t, "all = "+a.payloads+"\nputs shown(all), all.map { |p| Lowkiq.dump_payload.call(p).unpack('H*')[0] }").Output()
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if err != nil || len(lines) < 2 {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		s := rubystates.State{Name: name, QueueName: "W", Shards: 5}
		from.rdb.FlushAll(t.Context())
		var pushed []string
		for i, text := range lines[1:] {
			data, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			pushed = append(pushed, string(data))
			from.push(t, "a", string(data), 60, float64(i))
		}
		n++
		q := fresh(t, to.URL(), fmt.Sprint("app", n))
		m := between(t, from.server.URL(), &s, q, a.form)
		found, err := m.Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved, err := m.Move(t.Context())
		if err != nil || moved != found.Counts || moved.Left > 0 || moved.Jobs != 1 {
			t.Errorf("%s: found %+v, moved %+v, %v", name, found, moved, err)
		}
		b := lowkiq.Batch{Shard: lowkiq.Shard{Queue: q.Name}}
		err = transfer.Each(t.Context(), q, false, func(jobs []transfer.Kept) error {
			for _, k := range jobs {
				job := lowkiq.Job{ID: k.ID}
				for _, p := range k.Payloads {
					job.Payloads = append(job.Payloads, lowkiq.Payload{Score: p.Score, Data: p.Data, Header: p.Header})
				}
				b.Jobs = append(b.Jobs, job)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		worker := a.script(t, "answer = LowkiqWorker.answer(W, STDIN.read)\nraise answer unless answer == '{\"ok\":true}'")
		worker.Stdin = strings.NewReader(string(wire.AppendBatch(nil, &b)))
		if got, err := worker.CombinedOutput(); err != nil || string(got) != lines[0]+"\n" {
			t.Errorf("%s: perform got %s, %v, want %s", name, got, err, lines[0])
		}
		if _, err := between(t, from.server.URL(), &s, q, a.form).MoveBack(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		isEmpty(t, q, name)
		back, err := from.rdb.ZRange(t.Context(), "lowkiq:A:v1:W:payloads:a", 0, -1).Result()
		if err != nil || fmt.Sprintf("%q", back) != fmt.Sprintf("%q", pushed) {
			t.Errorf("%s: back came %q, %v, want %q", name, back, err, pushed)
		}
		if due := from.rdb.ZScore(t.Context(), "lowkiq:A:v1:W:all_ids_scored_by_perfrom_in", "a").Val(); due != 60 {
			t.Errorf("%s: it is due at %v, want 60 as before", name, due)
		}
	}
}

// push is perform_async of one job of W.
func (o *old) push(t testing.TB, id, payload string, due, score float64) {
	t.Helper()
	const prefix = "lowkiq:A:v1:W:"
	pipe := o.rdb.TxPipeline()
	pipe.ZAdd(t.Context(), prefix+"all_ids_lex", redis.Z{Member: id})
	pipe.ZAddNX(t.Context(), prefix+"all_ids_scored_by_perfrom_in", redis.Z{Score: due, Member: id})
	pipe.ZAddNX(t.Context(), prefix+"all_ids_scored_by_retry_count", redis.Z{Score: -1, Member: id})
	pipe.ZAddNX(t.Context(), fmt.Sprint(prefix, "ids_scored_by_perform_in:", rubyqueue.ShardOf(id, 5)), redis.Z{Score: due, Member: id})
	pipe.ZAddNX(t.Context(), prefix+"payloads:"+id, redis.Z{Score: score, Member: payload})
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What is pushed while the queue is here goes back only as what Ruby's load_payload reads, and the form of the move says
// what that is.
func TestBackGivesWhatRubyLoads(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	dumped := "\x04\bI\"\x06a\x06:\x06ET"
	for i, c := range []struct {
		form       Form
		push       lowkiq.Push
		back, stay string
	}{
		{JSON, lowkiq.Push{Payload: []byte(`"a"`)}, dumped, ""},
		{JSON, lowkiq.Push{}, "\x04\bI\"\x00\x06:\x06ET", ""},
		{JSON, lowkiq.Push{Payload: []byte(dumped)}, dumped, ""},
		{JSON, lowkiq.Push{Payload: []byte("\x1f\x8b")}, "", "neither JSON nor a dump of Ruby's Marshal"},
		{JSON, lowkiq.Push{Payload: []byte("5"), Header: map[string]string{"payload": "bytes"}}, "", "neither JSON nor a dump of Ruby's Marshal"},
		{Bytes, lowkiq.Push{Payload: []byte(dumped)}, dumped, ""},
		{Bytes, lowkiq.Push{Payload: []byte("\x1f\x8b")}, "\x1f\x8b", ""},
		{Bytes, lowkiq.Push{Payload: []byte("5"), Header: map[string]string{"payload": "bytes"}}, "5", ""},
		{Bytes, lowkiq.Push{Payload: []byte(`"a"`)}, "", "pushed as JSON"},
		{Bytes, lowkiq.Push{}, "", "pushed as JSON"},
	} {
		from.rdb.FlushAll(t.Context())
		s := rubystates.State{QueueName: "W", Shards: 5}
		q := fresh(t, to.URL(), fmt.Sprint("back", i))
		c.push.ID = "new"
		if _, err := q.Push(t.Context(), c.push); err != nil {
			t.Fatal(err)
		}
		var lefts []Left
		m := between(t, from.server.URL(), &s, q, c.form)
		m.OnLeft = func(l Left) { lefts = append(lefts, l) }
		if _, err := m.MoveBack(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(from.rdb.ZRange(t.Context(), "lowkiq:A:v1:W:payloads:new", 0, -1).Val(), "|")
		if got != c.back || (len(lefts) > 0) != (c.stay != "") || c.stay != "" && !strings.Contains(lefts[0].Reason, c.stay) {
			t.Errorf("%s %q: Ruby has %q, %+v stay; want %q, %q", c.form, c.push.Payload, got, lefts, c.back, c.stay)
		}
	}
}

// The form of a move, and where it went, hold until all is back.
func TestTheFormIsRemembered(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, JSON)
	ask := func(form Form, to string) error {
		m := between(t, from.server.URL(), &s, q, form)
		m.To = to
		err := m.AgreeOnWay(t.Context())
		if err == nil && m.Form != JSON {
			t.Errorf("the form is %q, want that of the move", m.Form)
		}
		return err
	}
	for _, form := range []Form{"", JSON} {
		if err := ask(form, "q"); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		form Form
		to   string
		says string
	}{{Bytes, "q", "with --payload json, not marshal"}, {JSON, "other", "moved to q, not to other"}} {
		if err := ask(c.form, c.to); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, want %q", err, c.says)
		}
	}
	if _, err := between(t, from.server.URL(), &s, q, JSON).MoveBack(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if err := ask("", "q"); err == nil || !strings.Contains(err.Error(), "--payload must be") {
		t.Errorf("when all is back: got %v, want that the form is asked for", err)
	}
}

// Two first moves with different forms begin at once: both have found that nothing was moved before.
func TestFirstMovesAtOnce(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, JSON)
	if _, err := between(t, from.server.URL(), &s, q, JSON).MoveBack(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	first, second := between(t, from.server.URL(), &s, q, JSON), between(t, from.server.URL(), &s, q, Bytes)
	for _, m := range []*Mover{first, second} {
		m.To = "q"
		if err := m.AgreeOnWay(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.claimWay(t.Context()); err != nil {
		t.Error(err)
	}
	if err := second.claimWay(t.Context()); !errors.Is(err, ErrWay) {
		t.Errorf("the second move: got %v, want %v", err, ErrWay)
	}
	if err := first.claimWay(t.Context()); err != nil {
		t.Errorf("the first move, again: %v", err)
	}
}
