//go:build linux

package handler

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

func ruby(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so examples/ruby/worker.rb was NOT run; install ruby to run it")
	}
	return path
}

// ordersApp is the program that lowkiq -r loaded, with a worker of Ruby's Lowkiq. It prints, as workers do.
const ordersApp = `
puts 'loading'
Point = Struct.new(:x, :y)
module OrdersWorker
  def self.perform(payloads_by_id)
    puts 'no answer'
    payloads_by_id.each do |id, payloads|
      raise "told to fail\xff" if payloads.include? 'fail'
      File.write('seen', "#{id.inspect} #{payloads.inspect}\n", mode: 'a')
    end
  end
  def self.retries_exhausted(batch)
    File.write('seen', "exhausted #{batch.map { |job| [job[:id], job[:payloads], job[:error]] }}\n", mode: 'a')
  end
end
`

// gem stands in for Ruby's Lowkiq. It has what worker.rb calls, with the same calling conventions.
const gem = `
module Lowkiq
  def self.on_server_init = -> { File.write('seen', "init\n") }
  def self.load_payload = ->(bytes) { Marshal.load(bytes.reverse) }
  def self.format_error = ->(error) { "formatted #{error.class}" }
  def self.server_wrapper
    lambda do |worker, batch, &block|
      File.write('seen', "before #{worker} #{batch.keys}\n", mode: 'a')
      block.call
      File.write('seen', "after\n", mode: 'a')
    end
  end
end
`

// rubyWorker runs examples/ruby/worker.rb with an app.
func rubyWorker(t *testing.T, app string) (e *Exec, seen func() string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "app.rb")
	if err := os.WriteFile(file, []byte(app), 0o600); err != nil {
		t.Fatal(err)
	}
	e = running(t, ExecConfig{Argv: []string{ruby(t), example(t, "ruby/worker.rb"), "app.rb", "OrdersWorker"}, Dir: dir, Env: []string{"LC_ALL=C"}})
	return e, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "seen"))
		if err != nil {
			t.Error(err)
		}
		_ = os.Remove(filepath.Join(dir, "seen"))
		return string(text)
	}
}

const dumpedPoint = "\x04\bS:\nPoint\a:\x06xi\x06:\x06yf\b1.5" // Marshal.dump(Point.new(1, 1.5))

func TestRubyWorker(t *testing.T) {
	t.Parallel()
	e, seen := rubyWorker(t, ordersApp)
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	b := batch()
	b.Jobs[0].Payloads = append(b.Jobs[0].Payloads, lowkiq.Payload{Score: 2, Data: []byte(dumpedPoint)}, lowkiq.Payload{Score: 3}, lowkiq.Payload{Score: 4, Data: []byte(`"Zoë"`)})
	b.Jobs = append(b.Jobs, lowkiq.Job{ID: "\xff", Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(deep)}}})
	for range 2 {
		if err := e.Handle(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	want := `"a" [{"b"=>1}, #<struct Point x=1, y=1.5>, "", "Zoë"]` + "\n" + `"\xFF" [` + deep + "]\n"
	if got := strings.ReplaceAll(seen(), `{"b" => 1}`, `{"b"=>1}`); got != want+want {
		t.Errorf("got %s, want %s twice", got, want)
	}

	b = batch()
	b.Jobs[0].Payloads[0].Data = []byte(`"fail"`)
	if err := e.Handle(t.Context(), b); err == nil || err.Error() != "told to fail\ufffd" {
		t.Errorf("got %v, want the error of the worker", err)
	}
	b.Jobs[0].Payloads[0].Data = []byte("\x04\bo:\x0cUnknown\x00")
	if err := e.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), "undefined class/module Unknown") {
		t.Errorf("got %v, want that a payload cannot be loaded", err)
	}
	for _, e := range []func() error{
		func() error { return e.Event(t.Context(), &lowkiq.Event{Kind: lowkiq.Recovered, Shard: b.Shard}) },
		func() error {
			return e.Event(t.Context(), &lowkiq.Event{Kind: lowkiq.Buried, Shard: b.Shard, Jobs: []lowkiq.Ended{
				{Job: lowkiq.Job{ID: "a", Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(dumpedPoint)}}}, Err: errors.New("no stock")},
			}})
		},
	} {
		if err := e(); err != nil {
			t.Error(err)
		}
	}
	if got, want := seen(), `exhausted [["a", [[#<struct Point x=1, y=1.5>, 1.0]], "no stock"]]`+"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An endpoint in Ruby answers like a child process, whatever the locale of its server is.
func TestRubyEndpoint(t *testing.T) {
	t.Parallel()
	for _, locale := range []string{"C", "C.UTF-8"} {
		script := fmt.Sprintf("require %q\n%s\nSTDIN.binmode.each_line { |line| STDERR.puts LowkiqWorker.answer(OrdersWorker, line) }", example(t, "ruby/worker.rb"), ordersApp)
		cmd := exec.CommandContext(t.Context(), ruby(t), "-e", script)
		cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "LC_ALL="+locale)
		cmd.Stdin = strings.NewReader(`{"jobs":[{"id":"Zoë","payloads":[{"score":1,"payload":{"$base64":"` + base64.StdEncoding.EncodeToString([]byte(dumpedPoint)) + `"}}]}]}` + "\n" +
			`{"jobs":[{"id":"b","payloads":[{"score":1,"payload":"fail"}]}]}` + "\n")
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			t.Fatal(locale, err, said.String())
		}
		if got, want := said.String(), "{\"ok\":true}\n{\"ok\":false,\"error\":\"told to fail\ufffd\"}\n"; got != want {
			t.Errorf("%s: got %s, want %s", locale, got, want)
		}
		seen, err := os.ReadFile(filepath.Join(cmd.Dir, "seen"))
		if got := strings.ReplaceAll(string(seen), `\u00EB`, "ë"); err != nil || got != "\"Zoë\" [#<struct Point x=1, y=1.5>]\n" { // the locale decides how inspect shows text
			t.Errorf("%s: got %s, %v", locale, got, err)
		}
	}
}

// With the gem, its own settings count.
func TestRubyWorkerWithTheGem(t *testing.T) {
	t.Parallel()
	e, seen := rubyWorker(t, gem+ordersApp)
	reversed := []byte(dumpedPoint)
	slices.Reverse(reversed)
	b := batch()
	b.Jobs[0].Payloads[0].Data = reversed
	if err := e.Handle(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got, want := seen(), "init\nbefore OrdersWorker [\"a\"]\n\"a\" [#<struct Point x=1, y=1.5>]\nafter\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.Jobs[0].Payloads[0] = lowkiq.Payload{Data: []byte("5"), Header: `{"payload":"bytes"}`}
	if err := e.Handle(t.Context(), b); err == nil || err.Error() != "formatted ArgumentError" { // "marshal data too short"
		t.Errorf("got %v, want that load_payload gets bytes that could be JSON", err)
	}
	b.Jobs[0].Payloads[0] = lowkiq.Payload{Data: []byte(`"fail"`)}
	if err := e.Handle(t.Context(), b); err == nil || err.Error() != "formatted RuntimeError" {
		t.Errorf("got %v, want the formatted error", err)
	}
}
