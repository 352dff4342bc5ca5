package redistest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// behindProxy returns a proxy, a client that goes through it, and one that does not.
func behindProxy(t *testing.T) (p *Proxy, through, direct *redis.Client) {
	t.Helper()
	s := Start(t)
	p = NewProxy(t, s.Addr())
	return p, client(t, p.Addr()), client(t, s.Addr())
}

func incr(words []string) bool { return strings.EqualFold(words[0], "incr") }

func TestCutOfOneRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		arm      func(*Proxy)
		executed int
	}{
		{"reply of the next request", func(p *Proxy) { p.CutBeforeReply(1) }, 1},
		{"reply of the third", func(p *Proxy) { p.CutBeforeReply(3) }, 3},
		{"reply by name", func(p *Proxy) { p.CutReplyOf(incr) }, 1},
		{"next request", func(p *Proxy) { p.CutBeforeRequest(1) }, 0},
		{"third request", func(p *Proxy) { p.CutBeforeRequest(3) }, 2},
		{"request by name", func(p *Proxy) { p.CutRequestOf(incr) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, through, direct := behindProxy(t)
			c.arm(p)
			answered := 0
			for through.Incr(t.Context(), "n").Err() == nil {
				answered++
			}
			executed, err := direct.Get(t.Context(), "n").Int()
			if err != nil && err != redis.Nil || executed != c.executed {
				t.Errorf("executed: got %d, %v, want %d", executed, err, c.executed)
			}
			if got := p.Requests("INCR"); got != answered+1 {
				t.Errorf("requests: got %d, want the %d answered ones and the cut one", got, answered)
			}
			if err := through.Incr(t.Context(), "n").Err(); err != nil || p.Cuts() != 1 {
				t.Errorf("after the cut: got %v, %d cuts, want one cut only", err, p.Cuts())
			}
		})
	}
}

// exchange sends text in one piece and returns all that comes back until the end.
// (A go-redis pipeline blames all its commands for a lost connection.)
func exchange(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("read replies: %v", err)
	}
	return string(got)
}

func TestCutWithinAPipeline(t *testing.T) {
	t.Parallel()
	second := func(words []string) bool { return words[0] == "incr" && words[1] == "second" }
	for _, c := range []struct {
		name     string
		arm      func(*Proxy)
		executed []any
	}{
		{"reply", func(p *Proxy) { p.CutReplyOf(second) }, []any{"1", "1", "1"}},
		{"request", func(p *Proxy) { p.CutRequestOf(second) }, []any{"1", nil, nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, _, direct := behindProxy(t)
			c.arm(p)
			if got, want := exchange(t, p.Addr(), "incr first\r\nincr second\r\nincr third\r\n"), ":1\r\n"; got != want {
				t.Errorf("replies: got %q, want only the first, %q", got, want)
			}
			got := direct.MGet(t.Context(), "first", "second", "third").Val()
			if fmt.Sprint(got) != fmt.Sprint(c.executed) {
				t.Errorf("executed: got %v, want %v", got, c.executed)
			}
		})
	}
}

// The reply of a cut request is read: the cut proves that the request was executed.
func TestCutWaitsForASlowReply(t *testing.T) {
	t.Parallel()
	p, through, direct := behindProxy(t)
	p.CutReplyOf(func(words []string) bool { return words[0] == "blpop" })
	failed := make(chan error, 1)
	go func() { failed <- through.BLPop(t.Context(), 0, "list").Err() }()
	eventually(t, "blocked in Redis", func() bool {
		return strings.Contains(direct.Info(t.Context(), "clients").Val(), "blocked_clients:1")
	})
	select {
	case err := <-failed:
		t.Fatalf("cut before Redis replied: %v", err)
	default:
	}
	direct.RPush(t.Context(), "list", "x")
	if err := <-failed; err == nil {
		t.Error("blpop: got nil, want a lost reply")
	}
	if n := direct.LLen(t.Context(), "list").Val(); n != 0 {
		t.Errorf("list: got %d elements, want the popped one gone", n)
	}
}

func TestProxyPassesLargePipelines(t *testing.T) {
	t.Parallel()
	p, through, _ := behindProxy(t)
	p.CutReplyOf(func([]string) bool { return false })
	value := strings.Repeat("\r\n$5*>", 2000)
	pipe := through.Pipeline()
	var gets []*redis.StringCmd
	for i := range 300 {
		key := fmt.Sprint(i)
		pipe.Set(t.Context(), key, value+key, 0)
		gets = append(gets, pipe.Get(t.Context(), key))
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, get := range gets {
		if get.Val() != value+fmt.Sprint(i) {
			t.Errorf("value %d came back changed", i)
		}
	}
	if p.Cuts() != 0 || p.Requests("set") != 300 {
		t.Errorf("got %d cuts, %d sets, want 0, 300", p.Cuts(), p.Requests("set"))
	}
}

func TestProxyPassesMessages(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			t.Parallel()
			p, _, direct := behindProxy(t)
			subscriber := redis.NewClient(&redis.Options{Addr: p.Addr(), Protocol: protocol})
			defer func() { _ = subscriber.Close() }()
			p.CutBeforeReply(1)
			sub := subscriber.Subscribe(t.Context(), "news")
			defer func() { _ = sub.Close() }()
			if _, err := sub.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
			direct.Publish(t.Context(), "news", "hello")
			if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Payload != "hello" {
				t.Errorf("message: got %v, %v, want hello", m, err)
			}
		})
	}
}

func TestRefuseAndDropAll(t *testing.T) {
	t.Parallel()
	p, through, _ := behindProxy(t)
	ping := func() error { return through.Ping(t.Context()).Err() }
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	p.Refuse(true)
	if err := ping(); err != nil {
		t.Errorf("present connection while refusing: got %v, want nil", err)
	}
	p.DropAll()
	if err := ping(); err == nil {
		t.Error("ping after DropAll while refusing: got nil, want an error")
	}
	p.Refuse(false)
	eventually(t, "ping after Refuse(false)", func() bool { return ping() == nil })
}

func TestDelay(t *testing.T) {
	t.Parallel()
	p, through, _ := behindProxy(t)
	const delay = 100 * time.Millisecond
	p.Delay(delay)
	began := time.Now()
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("delayed ping: got %s, want at least %s", took, delay)
	}
}

func TestProxyOutlivesItsRedis(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	through := client(t, p.Addr())
	s.Kill()
	if err := through.Ping(t.Context()).Err(); err == nil {
		t.Error("ping without Redis: got nil, want an error")
	}
	s.Restart()
	eventually(t, "ping with Redis back", func() bool { return through.Ping(t.Context()).Err() == nil })
}
