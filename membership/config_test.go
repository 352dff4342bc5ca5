package membership

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/golden"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(c *Config)
		want   string // "" = valid
	}{
		{"good", func(*Config) {}, ""},
		{"localhost", func(c *Config) { c.Bind = "localhost:0" }, ""},
		{"every interface, no key", func(c *Config) { c.Bind = ":7946" }, "without a key"},
		{"other host, no key", func(c *Config) { c.Bind = "10.0.0.1:7946" }, "without a key"},
		{"other host, key", func(c *Config) { c.Bind, c.Keys = "10.0.0.1:7946", [][]byte{key("a")} }, ""},
		{"other host, insecure", func(c *Config) { c.Bind, c.Insecure = "10.0.0.1:7946", true }, ""},
		{"no port", func(c *Config) { c.Bind = "127.0.0.1" }, "host:port"},
		{"port too high", func(c *Config) { c.Join = []string{"h:65536"} }, "port from 0 to 65535"},
		{"bad advertise", func(c *Config) { c.Advertise = "x" }, "Advertise"},
		{"no cluster", func(c *Config) { c.Cluster = "" }, "Cluster"},
		{"no boot", func(c *Config) { c.Boot = "" }, "Boot"},
		{"key length", func(c *Config) { c.Keys = [][]byte{[]byte("short")} }, "key 1 has 5 bytes"},
		{"negative ttl", func(c *Config) { c.TTL = -1 }, "negative"},
		{"longest name", func(c *Config) { c.Node = strings.Repeat("n", maxProcess-2) }, ""},
		{"name too long", func(c *Config) { c.Node = strings.Repeat("n", maxProcess-1) }, "Node and Boot have 201 bytes with a slash and must have at most 200"},
		{"meta too long", func(c *Config) { c.Meta.RaftInfo = strings.Repeat("x", MaxMeta) }, "fewer than 512"},
	}
	for _, tt := range tests {
		c := Config{Cluster: "c", Node: "n", Boot: "b", Bind: "127.0.0.1:0"}
		tt.change(&c)
		_, err := New(c)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// TestTimingFollowsTTL checks that members notice a death within the ttl. A dial is bounded for every ttl, because the
// end of a process may have to wait for it.
func TestTimingFollowsTTL(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{3 * time.Second, 6 * time.Second, 2 * time.Minute} {
		conf, err := Config{Cluster: "c", Node: "n", Boot: "B", Bind: "127.0.0.1:0", TTL: ttl}.withDefaults().memberlistConfig()
		if err != nil {
			t.Fatal(err)
		}
		if suspicion := time.Duration(conf.SuspicionMult*conf.SuspicionMaxTimeoutMult) * conf.ProbeInterval; suspicion > ttl*2/5 {
			t.Errorf("ttl %s: a suspect has %s to object, want at most 0.4 ttl", ttl, suspicion)
		}
		if conf.TCPTimeout > 10*time.Second {
			t.Errorf("ttl %s: TCP timeout is %s, want at most 10s", ttl, conf.TCPTimeout)
		}
	}
}

func TestInstance(t *testing.T) {
	t.Parallel()
	for _, want := range []Instance{{"n1", "01J", 0}, {"a.b/c", "01J", 12}} {
		if got, err := ParseInstance(want.String()); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", "n1", "n1/", "/b.1", "n1/b", "n1/.1", "n1/b.", "n1/b.x", "n1/b.-1"} {
		if got, err := ParseInstance(bad); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

// TestGolden reads the gossip of earlier releases, and writes the same text today.
func TestGolden(t *testing.T) {
	t.Parallel()
	meta := Meta{N: 3, Raft: 7947, Draining: true, RaftInfo: `{"server":"B#7.1"}`, Leaving: true}
	text, err := meta.encodeMeta()
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "meta", string(text), func(t *testing.T, stored string) {
		if got := decodeMeta([]byte(stored)); got != meta {
			t.Errorf("got %+v, want %+v", got, meta)
		}
	})
}

// TestGoldenDeparted does the same for departed processes.
func TestGoldenDeparted(t *testing.T) {
	t.Parallel()
	gone := newTable(nil)
	since := time.Now().Add(-time.Minute)
	gone.members["n1/B1"] = Member{Instance: Instance{"n1", "B1", 2}, Address: "10.0.0.1:7946", Meta: Meta{N: 2, Raft: 7947}, State: Dead, Since: since}
	gone.members["n2/B2"] = Member{Instance: Instance{"n2", "B2", 1}, Address: "10.0.0.2:7946", Meta: Meta{N: 1, Leaving: true}, State: Left, Since: since}
	text := regexp.MustCompile(`"for":\d+`).ReplaceAllString(string(gone.LocalState(true)), `"for":60000000000`)
	golden.Check(t, "departed", text, func(t *testing.T, stored string) {
		told := newTable(nil)
		told.MergeRemoteState([]byte(stored), true)
		for name, want := range gone.members {
			got := told.members[name]
			if ago := time.Since(got.Since); ago < time.Minute || ago > 2*time.Minute {
				t.Errorf("%s: got departed for %v, want a minute", name, ago)
			}
			if got.Since = want.Since; got != want {
				t.Errorf("%s: got %+v, want %+v", name, got, want)
			}
		}
	})
}

// TestManyDeparted checks that after a crash loop members tell only of the latest departures, and that a table takes at
// most maxDeparted.
func TestManyDeparted(t *testing.T) {
	t.Parallel()
	const extra = 100
	gone, now := newTable(nil), time.Now()
	name := func(i int) string { return fmt.Sprintf("n/B%05d", i) }
	for i := range maxDeparted + extra {
		gone.members[name(i)] = Member{Instance: Instance{"n", name(i)[2:], 0}, Address: "10.0.0.1:7946", State: Dead,
			Since: now.Add(-time.Minute + time.Duration(i)*time.Millisecond)}
	}
	told := newTable(nil)
	told.MergeRemoteState(gone.LocalState(true), true)
	for i, want := range map[int]bool{0: false, extra - 1: false, extra: true, maxDeparted + extra - 1: true} {
		if _, got := told.members[name(i)]; got != want {
			t.Errorf("told of the departure %d of %d: got %v, want %v", i+1, maxDeparted+extra, got, want)
		}
	}
	told.MergeRemoteState([]byte(`[{"process":"n/more","address":"10.0.0.1:7946","meta":{"n":0},"for":1}]`), true)
	if len(told.members) != maxDeparted {
		t.Errorf("got %d members, want at most %d", len(told.members), maxDeparted)
	}
	for name, m := range told.members {
		m.Since = now.Add(-2 * forget)
		told.members[name] = m
	}
	told.MergeRemoteState([]byte(`[{"process":"n/later","address":"10.0.0.1:7946","meta":{"n":0},"for":1}]`), true)
	if _, ok := told.members["n/later"]; !ok || len(told.members) != 1 {
		t.Errorf("got %d members, want those of long ago forgotten and the new one noted", len(told.members))
	}
}

// TestDepartedIsBounded checks that members ignore entries that no process can have published.
func TestDepartedIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxMeta)
	for what, d := range map[string]departed{
		"a meta that cannot be encoded": {Process: "n/B", Address: "10.0.0.1:7946", Meta: Meta{RaftInfo: long}},
		"a long name":                   {Process: long + "/B", Address: "10.0.0.1:7946"},
		"a long address":                {Process: "n/B", Address: long},
		"no boot":                       {Process: "n", Address: "10.0.0.1:7946"},
		"a departure in the future":     {Process: "n/B", Address: "10.0.0.1:7946", For: -1},
		"a departure of long ago":       {Process: "n/B", Address: "10.0.0.1:7946", For: forget},
	} {
		text, err := json.Marshal([]departed{d})
		if err != nil {
			t.Fatal(err)
		}
		told := newTable(nil)
		if told.MergeRemoteState(text, true); len(told.members) != 0 {
			t.Errorf("%s: got %v, want nothing noted", what, told.members)
		}
	}
	told := newTable(nil)
	told.MergeRemoteState(append([]byte(`[{"process":"n/B","for":1}]`), strings.Repeat(" ", maxDepartedText)...), true)
	if len(told.members) != 0 {
		t.Errorf("a long text: got %v, want nothing noted", told.members)
	}
}

// FuzzMeta checks that all gossip is read or ignored.
func FuzzMeta(f *testing.F) {
	for _, seed := range []string{`{"n":3,"r":7947,"d":true,"s":"x","l":true}`, `{"n":1,"later":[1]}`, `{"n":"x"}`, "", "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := decodeMeta(data).encodeMeta()
		if err != nil && len(data) < MaxMeta/6 { // a byte may be six in JSON
			t.Errorf("%q was read and cannot be written: %v", data, err)
		}
		if err == nil && decodeMeta(text) != decodeMeta(data) {
			t.Errorf("%q: written as %q, which is read as something else", data, text)
		}
	})
}

// TestFailedJoinsInTheLog checks that the log warns of a seed that cannot be joined, in one line, once a minute.
func TestFailedJoinsInTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		g := &Gossip{cfg: Config{Join: []string{"a:1"}, Log: slog.New(slog.NewTextHandler(&text, nil))}, failedJoins: map[string]time.Time{}}
		failed := errors.New("1 error occurred:\n\t* failed to join a:1: connection refused\n\n")
		for range 2 * 61 {
			g.logJoin("a:1", failed)
			time.Sleep(time.Second)
		}
		g.logJoin("a:1", nil)
		got := text.String()
		if strings.Count(got, "\n") != 3 || strings.Count(got, "level=WARN") != 3 || !strings.Contains(got, `address=a:1 err="connection refused"`) {
			t.Errorf("got %s, want three warnings in 122 s", got)
		}
	})
}

// TestStrangersInTheLog checks that the log warns of senders with another key or label, at growing intervals. It does
// not warn of a connection that ended early.
func TestStrangersInTheLog(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	l := &lineLog{log: slog.New(slog.NewTextHandler(&text, nil))}
	for _, line := range []string{
		"[ERR] memberlist: failed to receive and remove the stream label header: EOF from=127.0.0.1:1", "[ERR] memberlist: failed to receive and remove the stream label header: cannot decode label; stream has been truncated from=127.0.0.1:1",
		"[ERR] memberlist: failed to receive and remove the stream label header: read tcp 127.0.0.1:7001->127.0.0.1:1: i/o timeout from=127.0.0.1:1", "[ERR] memberlist: failed to receive: decrypt: read tcp: connection reset by peer from=127.0.0.1:1",
		"[DEBUG] memberlist: Stream connection from=127.0.0.1:1",
	} {
		_, _ = l.Write([]byte(line + "\n"))
	}
	if text.Len() > 0 {
		t.Errorf("got %s, want nothing of what ended early", text.String())
	}
	for range 100 {
		_, _ = l.Write([]byte("[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=127.0.0.1:1\n"))
		_, _ = l.Write([]byte("[ERR] memberlist: discarding stream with unacceptable label \"x\": from=127.0.0.1:1\n"))
	}
	if got := strings.Count(text.String(), "gossip is refused"); got != 1 {
		t.Errorf("got %d warnings of 200 strangers at once, want one: %s", got, text.String())
	}
}
