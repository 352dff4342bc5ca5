package config

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/rules"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var update = flag.Bool("update", false, "write the golden files")

// TestErrors compares the messages about bad configurations with golden files. A case
// is a YAML file, with lines "# env NAME=value" and "# flag --x key value". All secrets
// in them are hunter2.
func TestErrors(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil || len(cases) < 20 {
		t.Fatalf("got %d cases (%v), want at least 20", len(cases), err)
	}
	for _, path := range cases {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			in := input(t, path)
			_, err := Load(in)
			if err == nil {
				t.Fatal("got no error")
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want no secret in it", err)
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err2 := os.ReadFile(golden)
			if err2 != nil {
				t.Fatal(err2)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("got:\n%swant:\n%s", got, want)
			}
		})
	}
}

func input(t *testing.T, path string) Input {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Name: "node.yaml", File: text}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if strings.HasPrefix(line, "# env ") {
			in.Env = append(in.Env, strings.TrimSpace(strings.TrimPrefix(line, "# env ")))
		} else if strings.HasPrefix(line, "# flag ") {
			in.Flags = append(in.Flags, Override{Source: words[2], Key: words[3], Value: words[4]})
		}
	}
	return in
}

const full = `
cluster: shop
redis: rediss://:secret@127.0.0.1:6379/3
redis_tls: {ca_file: /etc/lowkiq/redis-ca.pem, cert_file: r.pem, key_file: r.key}
node: &node
  name: n1
  concurrency: 8
  ttl: 10s
  poll_interval: 500ms
  shutdown_timeout: 10s
  http: 127.0.0.1:7948
  token_file: /etc/lowkiq/token
  push_token_file: /etc/lowkiq/push
  read_token_file: /etc/lowkiq/read
  tls:
    cert_file: n.pem
    key_file: n.key
    ca_file: ca.pem
    client_auth: require
    peer_name: nodes.internal
  insecure: false
queues:
  history: &rules
    shards: 16
    batch_size: 1
    max_retry_count: 0
    retry_in: {base: 15s, power: 4, jitter: 30s}
    handler: {exec: [python3, handler.py], processes: 2}
    scheduler: seq
    shard_concurrency: 2
    prefetch: 10
    handler_timeout: 0s
    exhausted: block
    max_crashes: 0
  a.b:
    <<: *rules
    shards: 2
    retry_in: [1s, 1m]
    handler:
      http: "http://127.0.0.1:9000/orders"
      timeout: 30s
  empty:
recurring:
  report: &often {cron: "0 6 * * 1-5", zone: Europe/Berlin, queue: history, id: daily, header: {tag: a}, payload: {z: [1, 2.5, -3, true, null, "<1>"], a: {at: "{tick}", 7: x}}}
  sync: {every: 30s, offset: 5s, jitter: 2s, queue: a.b, missed: all, backlog: 7}
  merged: {<<: *often, id: other}
`

func load(t *testing.T, in Input) *Config {
	t.Helper()
	cfg, err := Load(in)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestFull(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "node.yaml", File: []byte(full)})
	if cfg.Cluster != "shop" || cfg.Node.Name != "n1" || *cfg.Node.Concurrency != 8 || *cfg.Node.TTL != 10*time.Second {
		t.Errorf("got %+v", cfg)
	}
	if want := (TLS{"n.pem", "n.key", "ca.pem", "require", "nodes.internal"}); cfg.Node.TLS != want {
		t.Errorf("tls: got %+v, want %+v", cfg.Node.TLS, want)
	}
	if cfg.RedisTLS.CAFile != "/etc/lowkiq/redis-ca.pem" || cfg.Node.PushTokenFile != "/etc/lowkiq/push" ||
		cfg.Node.ReadTokenFile != "/etc/lowkiq/read" {
		t.Errorf("got %+v, %+v", cfg.RedisTLS, cfg.Node)
	}
	history, ab := cfg.Queues["history"], cfg.Queues["a.b"]
	if *history.Shards != 16 || history.MaxRetryCount != -1 || history.Handler.Exec[1] != "handler.py" || history.HandlerTimeout != -1 {
		t.Errorf("history: got %+v", history)
	}
	if *ab.Shards != 2 || ab.Scheduler != rules.Seq || len(ab.RetryIn.Delays) != 2 || *ab.Handler.Timeout != 30*time.Second {
		t.Errorf("a.b: got %+v", ab)
	}
	report, sync, merged := cfg.Recurring["report"], cfg.Recurring["sync"], cfg.Recurring["merged"]
	if report.Cron != "0 6 * * 1-5" || report.Zone != "Europe/Berlin" || report.Queue != "history" || report.ID != "daily" ||
		report.Header["tag"] != "a" ||
		string(report.Payload) != `{"z":[1,2.5,-3,true,null,"<1>"],"a":{"at":"{tick}","7":"x"}}` {
		t.Errorf("report: got %+v, payload %s", report, report.Payload)
	}
	if sync.Every.String() != "30s" || sync.Offset.String() != "5s" || sync.Jitter.String() != "2s" || sync.Missed != "all" || sync.Backlog != 7 {
		t.Errorf("sync: got %+v", sync)
	}
	if merged.ID != "other" || merged.Cron != report.Cron {
		t.Errorf("merged: got %+v", merged)
	}
	if cfg.Queues["empty"] == nil || !reflect.DeepEqual(*cfg.Queues["empty"], Queue{}) {
		t.Errorf("empty: got %+v, want a queue with defaults", cfg.Queues["empty"])
	}
}

// TestMergedLists checks that a merge key takes a list of mappings, and that the first mapping has precedence.
func TestMergedLists(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "node.yaml", File: []byte(`
queues:
  a: &a {shards: 2, batch_size: 3, limit: &slow {rate: 1/s}}
  b: &b {shards: 4, max_retry_count: 5}
  c: {<<: [*a, *b], limit: {<<: [{concurrency: 2}, *slow, {concurrency: 9}]}}
`)})
	c := cfg.Queues["c"]
	if *c.Shards != 2 || c.BatchSize != 3 || c.MaxRetryCount != 5 {
		t.Errorf("got %+v, want the shards of a", c)
	}
	if want := (rules.Limit{Concurrency: 2, Rate: rules.Rate{N: 1, Per: time.Second}}); c.Limit != want {
		t.Errorf("limit: got %+v, want %+v", c.Limit, want)
	}
}

// TestMergedAndEmptyParts checks that a rule with parts may merge others. Its own keys precede the merged keys. A part
// without a value sets nothing.
func TestMergedAndEmptyParts(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "node.yaml", File: []byte(`
queues:
  a:
    limit: &limit {concurrency: 4, rate: 10/s}
    retry_in: &retry {base: 1s}
    morgue:
      keep:
      for:
    expire: {after: 1h, to: }
  b:
    limit: {<<: *limit, concurrency: 2}
    retry_in:
      power:
      <<: *retry
recurring:
  tick: {every: 1s, queue: a, payload: {<<: {x: 1, y: 2}, y: null}}
`)})
	a, b := cfg.Queues["a"], cfg.Queues["b"]
	if want := (rules.Limit{Concurrency: 2, Rate: rules.Rate{N: 10, Per: time.Second}}); b.Limit != want {
		t.Errorf("limit: got %+v, want %+v", b.Limit, want)
	}
	if b.RetryIn.Base == nil || *b.RetryIn.Base != time.Second || b.RetryIn.Power != nil {
		t.Errorf("retry_in: got %+v", b.RetryIn)
	}
	if a.Morgue != (rules.Morgue{}) || a.Expire.After != time.Hour || a.Expire.To != "" {
		t.Errorf("got %+v, %+v, want what the file sets", a.Morgue, a.Expire)
	}
	if got := string(cfg.Recurring["tick"].Payload); got != `{"x":1,"y":null}` {
		t.Errorf("payload: got %s", got)
	}
}

// TestEmptyVariable checks that an empty variable counts as unset.
func TestEmptyVariable(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "node.yaml", File: []byte(full), Env: []string{"LOWKIQ_NODE_REQUEST_MEMORY=", "LOWKIQ_NODE_TTL=", "LOWKIQ_QUEUES_HISTORY_LIMIT=", "LOWKIQ_CLUSTER="}})
	if cfg.Node.RequestMemory != 0 || *cfg.Node.TTL != 10*time.Second || cfg.Cluster != "shop" {
		t.Errorf("got %+v", cfg)
	}
}

func TestMinimalIsValid(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "minimal", File: []byte(Minimal)})
	if len(cfg.Queues) != 1 {
		t.Errorf("got %d queues, want 1", len(cfg.Queues))
	}
	// The queue in the comment must be right as well.
	load(t, Input{Name: "minimal", File: []byte(strings.ReplaceAll(Minimal, "# ", ""))})
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	in := Input{
		Name: "node.yaml", File: []byte(full),
		Env: []string{
			"HOME=/root", "LOWKIQ_REDIS=rediss://env:1/0", "LOWKIQ_NODE_TLS_CERT_FILE=e.pem", "LOWKIQ_REDIS_TLS_CA_FILE=e.pem", "LOWKIQ_CLUSTER=env", "LOWKIQ_NODE_INSECURE=true", "LOWKIQ_NODE_NAME=17",
			"LOWKIQ_QUEUES_A_B_SHARDS=7", "LOWKIQ_QUEUES_HISTORY_RETRY_IN=[2s]", "LOWKIQ_QUEUES_HISTORY_HANDLER_EXEC=[sh, -c, cat]",
			"LOWKIQ_TOKEN=x", "LOWKIQ_RECURRING_SYNC_EVERY=45s",
		},
		Flags: []Override{{"--redis", "redis", "rediss://flag:1/0"}},
	}
	cfg := load(t, in)
	for _, c := range []struct{ what, got, want string }{
		{"redis: the flag", cfg.Redis, "rediss://flag:1/0"},
		{"cluster: the variable", cfg.Cluster, "env"},
		{"name: a string without quotes", cfg.Node.Name, "17"},
		{"tls: the variable", cfg.Node.TLS.CertFile + " " + cfg.RedisTLS.CAFile, "e.pem e.pem"},
		{"http: the file", cfg.Node.HTTP, "127.0.0.1:7948"},
		{"exec: a list", strings.Join(cfg.Queues["history"].Handler.Exec, " "), "sh -c cat"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
		}
	}
	if got := cfg.Recurring["sync"].Every.String(); got != "45s" {
		t.Errorf("every: got %s, want the variable's", got)
	}
	if !cfg.Node.Insecure || *cfg.Queues["a.b"].Shards != 7 || len(cfg.Queues["history"].RetryIn.Delays) != 1 {
		t.Errorf("got %+v %+v", cfg.Node, cfg.Queues["a.b"])
	}
}

// A queue's name may look like another one's key.
func TestQueueNamedLikeAKey(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{Name: "node.yaml", File: []byte("queues: {x: , x.handler: }"),
		Env: []string{"LOWKIQ_QUEUES_X_HANDLER_HTTP=http://127.0.0.1:9000"}})
	if got := cfg.Queues["x"].Handler.HTTP; got != "http://127.0.0.1:9000" {
		t.Errorf("got %q, want the variable's", got)
	}
}

func TestFileOfAnotherSystem(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"lines end with CR LF":             strings.ReplaceAll(full, "\n", "\r\n"),
		"it begins with a byte order mark": "\ufeff" + full,
	} {
		cfg, err := Load(Input{Name: "node.yaml", File: []byte(text)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if cfg.Cluster != "shop" || cfg.Queues["a.b"].Handler.HTTP != "http://127.0.0.1:9000/orders" || *cfg.Queues["a.b"].Shards != 2 {
			t.Errorf("%s: got %+v", name, cfg)
		}
	}
}

func TestNothing(t *testing.T) {
	t.Parallel()
	if cfg := load(t, Input{}); len(cfg.Queues) != 0 || cfg.Redis != "" {
		t.Errorf("got %+v, want nothing", cfg)
	}
}

// FuzzLoad checks that Load answers soon for every file, variable and flag. An error names the wrong setting. Accepted
// values are within their bounds, and loading them again gives the same values.
//
// The fuzzer would minimise every new path through the YAML parser for a minute. make fuzz bounds that time.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(full), "LOWKIQ_QUEUES_ORDERS_RETRY_IN", "[1s, 2s]")
	f.Add([]byte("a: &a *a\n"), "LOWKIQ_NODE_TTL", "6s")
	f.Add([]byte("queues: {a: }"), "LOWKIQ_QUEUES_A_RETRY_IN", "{base: 1s}")
	f.Add([]byte("queues: {a: &a {shards: 3}, b: {<<: *a, max_id_size: 2MiB}}\n"), "LOWKIQ_NODE_JOIN", "[127.0.0.1:1]")
	cases, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range cases {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "LOWKIQ_QUEUES_ORDERS_SHARDS", "16")
	}
	f.Fuzz(func(t *testing.T, text []byte, name, value string) {
		if len(text) > 4096 || len(value) > 256 {
			return // longer ones go the same ways, and take long
		}
		in := Input{Name: "x.yaml", File: text, Env: []string{name + "=" + value},
			Flags: []Override{{Source: "--http", Key: "node.http", Value: "127.0.0.1:1"}}}
		began := time.Now()
		cfg, err := Load(in)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%d bytes took %s", len(text), took)
		}
		again, err2 := Load(in)
		if fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Errorf("got %v, then %v", err, err2)
		}
		if err != nil {
			var named *Error
			if !errors.As(err, &named) || named.Place == "" || named.Reason == "" {
				t.Errorf("got %q, want an error that says where and why", err)
			}
			return
		}
		for i, s := range listSettings(reflect.ValueOf(cfg).Elem(), "") {
			if s.queue != nil {
				if q := again.Queues[strings.TrimSuffix(strings.TrimPrefix(s.key, "queues."), "."+s.rule)]; !reflect.DeepEqual(s.queue.Rules, q.Rules) {
					t.Errorf("%s: got %+v, then %+v", s.key, s.queue.Rules, q.Rules)
				} else if err := s.queue.Check(); err != nil {
					t.Error(err)
				}
				continue
			}
			value := s.value
			if !reflect.DeepEqual(value.Interface(), listSettings(reflect.ValueOf(again).Elem(), "")[i].value.Interface()) {
				t.Errorf("%s: got %v, then another value", s.key, value)
			}
			if value.Kind() == reflect.Pointer && !value.IsNil() && value.Elem().Kind() != reflect.Struct &&
				bounds.Read(reflect.New(value.Type()).Elem(), s.tag, asJSON(t, value, s.tag)) != nil {
				t.Errorf("%s: got %v, beyond %s", s.key, value.Elem(), s.tag)
			}
		}
	})
}

// Whatever the file can say of a single key, a variable can.
func TestEveryKeyByVariable(t *testing.T) {
	t.Parallel()
	cfg := load(t, Input{File: []byte("queues: {orders: }\nrecurring: {tick: {every: 1s, queue: orders}}")})
	known := listSettings(reflect.ValueOf(cfg).Elem(), "")
	if len(known) < 50 {
		t.Fatalf("got %d keys, want all of them", len(known))
	}
	for _, s := range known {
		o := Override{Source: EnvName(s.key), Key: s.key, Value: example(s)}
		if err := cfg.applyOverride(o, known); err != nil {
			t.Error(err)
		} else if s.queue == nil && s.value.IsZero() || s.queue != nil && s.queue.Bases(1, nil)[s.rule].From != "program" ||
			cfg.findOrigin(s.key).place() != o.Source {
			t.Errorf("%s=%s: got %v from %s", o.Source, o.Value, s.value, cfg.findOrigin(s.key).place())
		}
	}
}

// examples are values of rules.
var examples = map[string]string{
	"then": "{done: mail}", "batch_size": "2", "concurrency": "2", "limit": "{concurrency: 2, rate: 5/m}", "groups": "{by: \"/\", concurrency: 2}", "shard_concurrency": "2", "prefetch": "2",
	"scheduler": "seq", "priority": "1", "handler_timeout": "0s", "max_retry_count": "0", "retry_in": "[1s]", "exhausted": "block", "state": "0", "journal": "all",
	"morgue": "{keep: 10, for: 1h}", "expire": "{after: 1h, to: drop}", "stuck_after": "1m", "max_crashes": "0", "max_payload_size": "1KiB", "max_id_payloads": "1",
	"max_id_size": "1GiB", "coalesce": "once", "debounce": "{quiet: 2s, most: 30s}",
}

// asJSON is a value of the file as JSON.
func asJSON(t *testing.T, v reflect.Value, tag reflect.StructTag) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(bounds.Show(v, tag))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// example is a value of a key that is not zero.
func example(s setting) string {
	if s.queue != nil {
		return examples[s.rule]
	}
	t := s.value.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case s.tag.Get("oneof") != "":
		word, _, _ := strings.Cut(s.tag.Get("oneof"), ",")
		return word
	case s.tag.Get("max") != "":
		return s.tag.Get("max")
	case t.Kind() == reflect.Int64:
		return "1s"
	case t.Kind() == reflect.Map:
		return "{a: b}"
	case t.Kind() == reflect.Slice:
		return "[1s]"
	}
	return "true"
}

// TestSources checks that the source of a mapping is the line where it begins, or the variable that replaced it.
func TestSources(t *testing.T) {
	t.Parallel()
	file := []byte("queues:\n  orders:\n    batch_size: 3\n    morgue: {keep: 3, for: 1h}\n    retry_in: [1s, 2s]\n    journal: {runs: all, keep: 5}\n")
	cfg := load(t, Input{File: file, Env: []string{"LOWKIQ_QUEUES_ORDERS_JOURNAL={runs: all, keep: 7}"}})
	got := cfg.Sources("orders")
	for key, want := range map[string]string{
		"batch_size": ":3:17", "morgue": ":4:13", "retry_in": ":5:15", "journal": "LOWKIQ_QUEUES_ORDERS_JOURNAL",
	} {
		if !strings.HasSuffix(got[key], want) {
			t.Errorf("%s: got %q, want %s at its end", key, got[key], want)
		}
	}
}

func TestHandlerEvents(t *testing.T) {
	t.Parallel()
	file := "queues: {orders: {handler: {http: \"http://h/x\", events: [%s]}}}\n"
	cfg := load(t, Input{Name: "node.yaml", File: fmt.Appendf(nil, file, "recovered, buried, exhausted")})
	if got := strings.Join(cfg.Queues["orders"].Handler.Events, " "); got != "recovered buried exhausted" {
		t.Errorf("got %q", got)
	}
	_, err := Load(Input{Name: "node.yaml", File: fmt.Appendf(nil, file, "done")})
	if err == nil || !strings.Contains(err.Error(), `events: "done": want some of recovered, buried and exhausted`) {
		t.Errorf("got %v, want the event that there is not", err)
	}
}
