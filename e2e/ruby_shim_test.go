//go:build linux

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// standIn stands in for the gem where that is not installed: it calls client middlewares as the gem (1.2.2) does, and writes
// what the gem's Queue#push writes. It is not the gem.
const standIn = `
require 'socket'
require 'zlib'
module Lowkiq
  class << self; attr_accessor :client_middlewares, :dump_payload, :redis_port; end
  self.client_middlewares = []
  self.dump_payload = Marshal.method(:dump)
  module Worker
    attr_accessor :queue_name, :shards_count
    def self.extended(mod) mod.queue_name, mod.shards_count = mod.name, 5 end
    def perform_async(batch)
      Lowkiq.client_middlewares.reverse.reduce(-> { old_push(batch) }) { |inner, m| -> { m.call(self, batch, &inner) } }.call
    end
    def old_push(batch)
      redis = TCPSocket.new('127.0.0.1', Lowkiq.redis_port)
      say = ->(*words) { redis.write("*#{words.size}\r\n" + words.map { |w| w = w.to_s.b; "$#{w.bytesize}\r\n#{w}\r\n".b }.join); redis.gets }
      at = ->(name) { "lowkiq:A:v1:#{queue_name}:#{name}" }
      say.call('MULTI')
      batch.each do |job|
        id, due = job.fetch(:id), job.fetch(:perform_in) { Time.now.to_f }
        say.call('ZADD', at['all_ids_lex'], 0, id)
        say.call('ZADD', at['all_ids_scored_by_perfrom_in'], 'NX', due, id)
        say.call('ZADD', at['all_ids_scored_by_retry_count'], 'NX', -1, id)
        say.call('ZADD', at["ids_scored_by_perform_in:#{Zlib.crc32(id.to_s) % shards_count}"], 'NX', due, id)
        say.call('ZADD', at["payloads:#{id}"], 'NX', job.fetch(:score) { Time.now.to_f }, Lowkiq.dump_payload.call(job.fetch(:payload, '')))
      end
      say.call('EXEC')
      redis.close
    end
  end
end
`

// theGem is what a program of Ruby loads to have the gem push to the Redis at an address.
const theGem = "require 'lowkiq'\nLowkiq.redis = -> { Redis.new url: \"redis://127.0.0.1:#{Lowkiq.redis_port}/0\" }\nclass << Lowkiq; " +
	"attr_accessor :redis_port; end\n"

// rubies are what shim.rb is tested with: the gem that is stood in for, and the gem itself if it is installed.
func rubies(t *testing.T) map[string]string {
	t.Helper()
	if _, err := exec.LookPath("ruby"); err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so examples/ruby/shim.rb was NOT run; install ruby to run it")
	}
	all := map[string]string{"stand-in": standIn}
	if exec.CommandContext(t.Context(), "ruby", "-e", "require 'lowkiq'").Run() == nil {
		all["gem"] = theGem
	} else {
		t.Log("NOT RUN WITH THE GEM: Ruby's Lowkiq is not installed, its client side is stood in for")
	}
	return all
}

// rubyScript is a program that pushes.
func rubyScript(t *testing.T, gem, redis, text string) *exec.Cmd {
	t.Helper()
	shim, err := filepath.Abs("../examples/ruby/shim.rb")
	if err != nil {
		t.Fatal(err)
	}
	port := redis[strings.LastIndex(redis, ":")+1:]
	file := filepath.Join(t.TempDir(), "push.rb")
	text = fmt.Sprintf("%s\nLowkiq.redis_port = %s\nrequire %q\nOrder = Struct.new(:number)\nmodule OrdersWorker; extend Lowkiq::Worker; "+
		"end\n%s", gem, port, shim, text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "ruby", "-W", file)
	cmd.Dir = filepath.Dir(file)
	cmd.Env = nodebin.Env("LC_ALL=C")
	return cmd
}

// TestRubyShim pushes from a producer of Ruby's Lowkiq through examples/ruby/shim.rb to a real node and an old worker
// below it. The payloads come in order, by score, at their time, and as the pushed objects. Workers without a new queue
// push as before.
func TestRubyShim(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, gem := range rubies(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			old := redistest.StartOld(t)
			worker, err := filepath.Abs("../examples/ruby/worker.rb")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			app, seen := filepath.Join(dir, "app.rb"), filepath.Join(dir, "seen")
			if err := os.WriteFile(app, []byte("Order = Struct.new(:number)\n"+strings.Replace(rubyApp,
				"Order = Struct.new(:number, :items)", "", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := r.client.Registry().Pause(t.Context(), queueName); err != nil { // all of an id is to be in one call
				t.Fatal(err)
			}
			api := redistest.Addresses(t, 1)[0]
			config := r.config(fmt.Sprintf("{exec: [ruby, %q, %q, OrdersWorker], processes: 1}", worker, app))
			node := r.run("lowkiq-node", nil, built.Path(t, ".."), "run", "--config", config, "--http", api)
			r.leased(node, 1)
			due := time.Now().Add(time.Hour).Truncate(time.Second)
			cmd := rubyScript(t, gem, old.Addr(), fmt.Sprintf(`
module MailsWorker; extend Lowkiq::Worker; end
before = []
Lowkiq.client_middlewares << ->(worker, batch, &block) { before << [worker, batch.size]; block.call }
LowkiqShim.install(queues: { 'OrdersWorker' => %q }, payload: :marshal)
OrdersWorker.perform_async [{ id: 7, payload: Order.new(3), score: 3 }, { id: '7', payload: :first, score: 1.5 }, { id: 'later', perform_in: %d }]
OrdersWorker.perform_async [{ id: 7, payload: { at: Time.at(0).utc }, score: 2r }]
OrdersWorker.perform_async((1..2500).map { |n| { id: 'many', payload: n } })
OrdersWorker.perform_async [{ id: "\xff", payload: "\xff".b }]
OrdersWorker.perform_async []
MailsWorker.perform_async [{ id: 'a mail', payload: 1 }]
raise before.inspect unless before.map(&:last) == [3, 1, 2500, 1, 0, 1] && before.last[0] == MailsWorker
`, queueName, due.Unix()))
			cmd.Env = append(cmd.Env, "LOWKIQ_URL=http://"+api)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got, ok, err := browse.Of(r.queue).Job(t.Context(), "later"); err != nil || !ok || !got.PerformAt.Equal(due) ||
				string(got.Payloads[0].Data) != "\x04\bI\"\x00\x06:\x06ET" {
				t.Errorf("got %+v, %v, want the empty text, due at %s", got, err, due)
			}
			if err := r.client.Registry().Resume(t.Context(), queueName); err != nil {
				t.Fatal(err)
			}
			r.await("what is due is done", patience, func() bool {
				stats := r.stats()
				return stats.Jobs.Total() == 1 && stats.Jobs.Scheduled == 1
			})
			node.terminate(patience)
			text, err := os.ReadFile(seen)
			if err != nil {
				t.Fatal(err)
			}
			var many []string
			lines := map[string]int{}
			for line := range strings.Lines(strings.ReplaceAll(string(text), "at: ", ":at=>")) {
				if numbers, ok := strings.CutPrefix(line, "many "); ok {
					many = append(many, strings.Fields(numbers)...)
				} else {
					lines[strings.TrimSpace(line)]++
				}
			}
			if len(lines) != 2 || lines[`7 :first {:at=>1970-01-01 00:00:00 UTC} #<struct Order number=3>`] != 1 || lines["\xff \"\\xFF\""] != 1 {
				t.Errorf("got %v, want 7 by score, and bytes", lines)
			}
			for i, n := range many {
				if n != fmt.Sprint(i+1) {
					t.Fatalf("payload %d of many is %s", i+1, n)
				}
			}
			if len(many) != 2500 {
				t.Errorf("got %d payloads of many, want 2500", len(many))
			}
			rdb := redis.NewClient(&redis.Options{Addr: old.Addr()})
			defer rdb.Close()
			if keys, err := rdb.Keys(t.Context(), "lowkiq:A:v1:*:payloads:*").Result(); err != nil || len(keys) != 1 ||
				keys[0] != "lowkiq:A:v1:MailsWorker:payloads:a mail" {
				t.Errorf("the old Redis has %q, %v, want the mail", keys, err)
			}
		})
	}
}

// answering is a node that answers each push as told, and keeps what was pushed.
type answering struct {
	mu     sync.Mutex
	plan   []string // "cut", a status, or "no": the jobs that are refused, "again": those that are to come again; guarded by mu
	pushed []string // ids and payloads of each request; guarded by mu
	header http.Header
}

func (a *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.header = r.Header
	what, ids := "", []string{}
	for line := range strings.Lines(string(body)) {
		var job struct {
			ID      string
			Payload json.RawMessage
			Score   *float64
			Due     *float64 `json:"perform_in"`
		}
		if err := json.Unmarshal([]byte(line), &job); err != nil {
			a.pushed = append(a.pushed, err.Error())
		}
		var dumped map[string][]byte
		if json.Unmarshal(job.Payload, &dumped) == nil && dumped["$base64"] != nil {
			job.Payload = dumped["$base64"]
		}
		ids = append(ids, job.ID)
		what += fmt.Sprintf("%s=%s", job.ID, job.Payload)
		if job.Score != nil {
			what += fmt.Sprint(" score ", *job.Score)
		}
		what += ";"
	}
	a.pushed = append(a.pushed, fmt.Sprint(len(ids), " ", what))
	told := "ok"
	if len(a.plan) > 0 {
		told, a.plan = a.plan[0], a.plan[1:]
	}
	switch {
	case told == "cut":
		panic(http.ErrAbortHandler)
	case told == "html":
		io.WriteString(w, "<html>") //nolint:errcheck // the test would see
	case told[0] >= '0' && told[0] <= '9':
		w.WriteHeader(int(told[0]-'0')*100 + int(told[1]-'0')*10 + int(told[2]-'0'))
		io.WriteString(w, `{"detail":"for a reason"}`) //nolint:errcheck // as above
	default:
		var results []string
		for _, id := range ids {
			switch {
			case told == "no" && strings.HasPrefix(id, "no"):
				results = append(results, `{"ok":false,"error":"too much of `+id+`"}`)
			case told == "again" && strings.HasPrefix(id, "again") || told == "all again":
				results = append(results, `{"ok":false,"retry":true,"error":"Redis is away"}`)
			default:
				results = append(results, `{"ok":true}`)
			}
		}
		fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(results, ","))
	}
}

// TestRubyShimFaults checks that the shim repeats a push while no node takes it, and that nothing overtakes that push.
// A refused push raises an error with the jobs that are not stored. The shim does not send values that JSON cannot
// express.
func TestRubyShimFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	rubies(t)
	const two = "{ id: 'a', payload: 1 }, { id: 'b', payload: { x: [1.5, nil, :y], 1 => \"Zo\u00eb\" } }"
	const sent = `2 a=1;b={"x":[1.5,null,"y"],"1":"Zoë"};`
	for _, c := range []struct{ name, push, plan, pushed, raised string }{
		{"stored", two, "", sent, ""},
		{"away, cut, then taken", two, "503,cut,502,all again,429", strings.Repeat(sent+"|", 5) + sent, ""},
		{"some again", "{ id: 'again1' }, { id: 'b' }, { id: 'again2' }", "again", `3 again1="";b="";again2="";|2 again1="";again2="";`, ""},
		{"away for too long", two, strings.Repeat("503,", 200) + "503", "", `no node has taken it: .*; not stored: 2 of the jobs \(see jobs\) ab$`},
		{"refused", "{ id: 'a', payload: 1 }, { id: 'no', payload: 2 }, { id: 'c' }", "no", `3 a=1;no=2;c="";`, "too much of no; .*1 of the jobs.* no$"},
		{"malformed", two, "400", sent, "the node answers 400: for a reason; .* ab$"},
		{"no node", two, "html", sent, "the node answers 200: <html>; .* ab$"},
		{"in parts", "*(1..1001).map { |n| { id: n, payload: n, score: n } }", "503", "parts", ""},
		{"second part refused", "*(1..1000).map { |n| { id: n } }, { id: 'no' }, { id: 'x' }", "ok,no", "*", "too much of no; .*1 of the jobs.* no$"},
		{"large ones", "*(1..3).map { |n| { id: n, payload: 'x' * 700_000 } }", "", "*3", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			node := &answering{}
			if c.plan != "" {
				node.plan = strings.Split(c.plan, ",")
			}
			server := httptest.NewServer(node)
			defer server.Close()
			limit := patience.Seconds()
			if c.name == "away for too long" {
				limit = 0.3
			}
			cmd := rubyScript(t, standIn, ":1", fmt.Sprintf("LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :json, patience: %v)", limit)+`
begin
  OrdersWorker.perform_async [`+c.push+`]
rescue LowkiqShim::Error => e
  print e.message, ' ', e.jobs.map { |job| job[:id] }.join
end
`)
			cmd.Env = append(cmd.Env, "LOWKIQ_URL=http://127.0.0.1:9, "+server.URL+"/", "LOWKIQ_TOKEN=sesame") // nobody listens at the first
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := string(out); (got == "") != (c.raised == "") || !regexp.MustCompile(c.raised).MatchString(got) {
				t.Errorf("raised %q, want %q", got, c.raised)
			}
			node.mu.Lock()
			defer node.mu.Unlock()
			pushed := strings.Join(node.pushed, "|")
			switch {
			case c.name == "away for too long" || c.pushed == "*":
			case c.pushed == "parts":
				if len(node.pushed) != 3 || node.pushed[0] != node.pushed[1] ||
					!strings.HasPrefix(node.pushed[0], "1000 1=1 score 1;2=2 score 2;") || node.pushed[2] != "1 1001=1001 score 1001;" {
					t.Errorf("pushed %.100q, want the first 1000 twice, then the last", node.pushed)
				}
			case c.pushed == "*3":
				if len(node.pushed) != 3 {
					t.Errorf("got %d requests, want 3", len(node.pushed))
				}
			case pushed != c.pushed:
				t.Errorf("pushed %q, want %q", pushed, c.pushed)
			}
			if c.pushed != "" && node.header.Get("Authorization") != "Bearer sesame" {
				t.Errorf("got %v, want the token", node.header)
			}
		})
	}
}

// What JSON cannot say is not sent, nor anything that is pushed with it.
func TestRubyShimPlainData(t *testing.T) {
	tier.All(t)
	t.Parallel()
	rubies(t)
	node := &answering{}
	server := httptest.NewServer(node)
	defer server.Close()
	cases := []struct{ job, raised string }{
		{"{ id: nil }", "a job without an id"},
		{"{ payload: 1 }", "key not found: :id"},
		{"{ id: 'b', retry_count: 1 }", "a retry_count cannot be pushed"},
		{"{ id: 'b', score: nil }", "can't convert nil"},
		{"{ id: 'b', payload: [{ at: Time.at(0).utc }] }", "payload of b has, Time 1970"},
		{"{ id: 'b', payload: Order.new(1) }", "payload of b has, Order"},
		{`{ id: 'b', payload: "\xff".b }`, "payload of b has, String"},
		{`{ id: 'b', payload: "Zo\u00eb".encode('UTF-16LE') }`, "payload of b has, String"},
		{"{ id: 'b', payload: { :$base64 => 'eA==' } }", "payload of b has one key, $base64"},
		{"{ id: 'b', payload: Float::NAN }", "payload of b has, Float NaN"},
		{"{ id: 'b', payload: { 1.5 => 2 } }", "payload of b has, Hash"},
		{"{ id: 'b', payload: { 1 => 2, '1' => 3 } }", "payload of b has, Hash"},
		{"{ id: 'b', payload: [].tap { |a| a << a } }", "payload of b has, Array"},
		{"{ id: 'b', payload: Class.new(Hash).new }", "payload of b has, #<Class"},
	}
	push := "LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :json)\n"
	for _, c := range cases {
		push += "begin; OrdersWorker.perform_async [{ id: 'a' }, " + c.job + "]; puts; rescue ArgumentError, KeyError, TypeError => e; puts " +
			"e.message.lines.first; end\n"
	}
	cmd := rubyScript(t, standIn, ":1", push)
	cmd.Env = append(cmd.Env, "LOWKIQ_URL="+server.URL)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(string(out), "\n")
	if err != nil || len(lines) != len(cases)+1 || len(node.pushed) > 0 {
		t.Fatalf("got %v, pushed %q: %s", err, node.pushed, out)
	}
	for i, c := range cases {
		if !strings.Contains(lines[i], c.raised) {
			t.Errorf("%s raised %q, want %q", c.job, lines[i], c.raised)
		}
	}
}

// By https the shim knows the node by its CA, and shows a certificate; a token may be in a file. A fork has a connection of
// its own.
func TestRubyShimTLS(t *testing.T) {
	tier.All(t)
	t.Parallel()
	rubies(t)
	ca := certtest.New(t)
	node := &answering{}
	server := httptest.NewUnstartedServer(node)
	pair, err := tls.LoadX509KeyPair(ca.Server("node"))
	if err != nil {
		t.Fatal(err)
	}
	known := x509.NewCertPool()
	if pem, err := os.ReadFile(ca.File); err != nil || !known.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := ca.Client("producer")
	cmd := rubyScript(t, standIn, ":1", `
LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :json)
OrdersWorker.perform_async [{ id: 'a' }]
Process.wait(fork { OrdersWorker.perform_async [{ id: 'b' }] })
OrdersWorker.perform_async [{ id: 'c' }]
`)
	cmd.Env = append(cmd.Env, "LOWKIQ_URL="+server.URL, "LOWKIQ_TOKEN_FILE="+token, "LOWKIQ_CA="+ca.File, "LOWKIQ_CERT="+cert, "LOWKIQ_KEY="+key)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Join(node.pushed, "|"); got != `1 a="";|1 b="";|1 c="";` || node.header.Get("Authorization") != "Bearer sesame" {
		t.Errorf("pushed %q with %v", got, node.header)
	}
	cmd = rubyScript(t, standIn, ":1", "LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :json, patience: "+
		"0)\nOrdersWorker.perform_async [{ id: 'a' }]")
	cmd.Env = append(cmd.Env, "LOWKIQ_URL="+server.URL)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "certificate verify failed") {
		t.Errorf("got %v: %s, want that nobody vouches for the node", err, out)
	}
}

// Gems without client middlewares, and a shim that comes too late.
func TestRubyShimInstalled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	rubies(t)
	node := &answering{}
	server := httptest.NewServer(node)
	defer server.Close()
	const older = "module Lowkiq; module Worker; attr_accessor :queue_name, :client_queue; def perform_async(batch) client_queue.push batch " +
		"end; end; class << self; attr_accessor :redis_port; end; end\n"
	cmd := rubyScript(t, older, ":1", `
OrdersWorker.queue_name = 'OrdersWorker'
module MailsWorker; extend Lowkiq::Worker; end
MailsWorker.client_queue = []
LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :json)
OrdersWorker.perform_async [{ id: 'a' }]
MailsWorker.perform_async [{ id: 'b' }]
print MailsWorker.client_queue.flatten.size
`)
	cmd.Env = append(cmd.Env, "LOWKIQ_URL="+server.URL)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "1" || strings.Join(node.pushed, "|") != `1 a="";` {
		t.Errorf("got %q, %v: %s", node.pushed, err, out)
	}
	cmd = rubyScript(t, standIn, ":1", "Lowkiq.instance_variable_set(:@client_wrapper, 1)\nLowkiqShim.install(queues: {}, payload: :json)")
	cmd.Env = append(cmd.Env, "LOWKIQ_URL="+server.URL)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "install the shim earlier") {
		t.Errorf("got %v: %s, want that it is too late", err, out)
	}
}
