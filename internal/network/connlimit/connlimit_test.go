package connlimit

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is a connection from somewhere, which notes that it was closed.
type fake struct {
	net.Conn
	from   string
	closed *[]string
}

func (f fake) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(strings.Split(f.from, "/")[0]), Port: 1}
}
func (f fake) Close() error { *f.closed = append(*f.closed, f.from); return nil }

func TestWhoIsClosed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit Limit
		steps string // address/name; + = held; - = closed by its owner
		want  string // closed by the set
	}{
		{"room for all", Limit{3, 0}, "::1/a ::1/b ::1/c", ""},
		{"the longest", Limit{2, 0}, "::1/a ::1/b ::1/c ::1/d", "::1/a ::1/b"},
		{"not those held", Limit{2, 0}, "::1/a+ ::1/b ::1/c ::1/d", "::1/b ::1/c"},
		{"all are held: the new one", Limit{2, 0}, "::1/a+ ::1/b+ ::1/c", "::1/c"},
		{"of the address with most", Limit{3, 0}, "::2/a ::1/b ::1/c ::3/d", "::1/b"},
		{"one address, and room in total", Limit{9, 2}, "::1/a ::2/b ::1/c ::1/d", "::1/a"},
		{"one address is held", Limit{9, 2}, "::1/a+ ::2/b ::1/c+ ::1/d", "::1/d"},
		{"another address is full in total", Limit{2, 2}, "::1/a ::1/b ::2/c", "::1/a"},
		{"left by itself", Limit{2, 0}, "::1/a ::1/b ::1/a- ::1/c", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			set, open := New(c.limit), map[string]*Conn{}
			var closed []string
			for _, step := range strings.Fields(c.steps) {
				name := strings.TrimRight(step, "+-")
				if strings.HasSuffix(step, "-") {
					before := closed
					_ = open[name].Close()
					closed = before
					continue
				}
				added := set.Add(fake{from: name, closed: &closed})
				if added == nil {
					continue
				}
				open[name] = added
				if strings.HasSuffix(step, "+") {
					added.Hold()
				}
			}
			if got := strings.Join(closed, " "); got != c.want {
				t.Errorf("got closed %q, want %q", got, c.want)
			}
			if set.Len() > c.limit.Total {
				t.Errorf("got %d connections, want %d at most", set.Len(), c.limit.Total)
			}
		})
	}
}

// Who is let go waits anew: others have waited longer.
func TestReleaseWaitsAnew(t *testing.T) {
	t.Parallel()
	var closed []string
	set := New(Limit{Total: 2})
	first := set.Add(fake{from: "::1/a", closed: &closed})
	first.Hold()
	set.Add(fake{from: "::1/b", closed: &closed})
	first.Release()
	set.Add(fake{from: "::1/c", closed: &closed})
	if got := strings.Join(closed, " "); got != "::1/b" {
		t.Errorf("got closed %q, want ::1/b", got)
	}
}

// Many at once on a real port: never more than the limit, and the last one is served.
func TestListener(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listener{plain, New(Limit{Total: 4})}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if got := l.Set.Len(); got > 4 {
				t.Errorf("got %d connections, want 4 at most", got)
			}
			serving.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
	var silent []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
		return c
	}
	for range 20 {
		dial()
	}
	last := dial()
	if _, err := io.WriteString(last, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(last, make([]byte, 5)); err != nil {
		t.Errorf("the last one: got %v, want its echo", err)
	}
	_ = l.Close()
	for _, c := range silent {
		_ = c.Close()
	}
	serving.Wait()
}
