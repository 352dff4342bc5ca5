package membership

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// sealed begins a stream as memberlist does for an encrypted state of n bytes.
func sealed(t *testing.T, cluster string, n uint32) []byte {
	t.Helper()
	const encrypted, labelled = 10, 244
	text := append([]byte{labelled, byte(len(cluster))}, cluster...)
	return binary.BigEndian.AppendUint32(append(text, encrypted), n)
}

// TestStreamsOfStrangersAreBounded opens and fills streams from a host without the key. Their memory is bounded, and a
// member joins in the meantime.
func TestStreamsOfStrangersAreBounded(t *testing.T) {
	key := [][]byte{bytes.Repeat([]byte("k"), 32)}
	n1 := start(t, nil, Config{Node: "n1", Keys: key, TTL: time.Minute}) // so long is a stream waited for
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most, stop := uint64(0), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		}
	})
	part := make([]byte, 64<<10)
	for range 60 {
		conn, err := net.Dial("tcp", n1.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write(sealed(t, "c", 20<<20)); err != nil {
			continue
		}
		all.Go(func() {
			_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			for range 19 << 20 / len(part) {
				if _, err := conn.Write(part); err != nil {
					return
				}
			}
		})
	}
	n2 := start(t, nil, Config{Node: "n2", Keys: key, Join: []string{n1.Address()}})
	eventually(t, "n2 sees n1", func() bool { return n2.State(n1.instance()) == Alive })
	close(stop)
	all.Wait()
	// A stream may be in memory four times while it grows (with -race), and Go may keep as much
	// garbage again. Only all of the 1,200 MiB must not be there.
	if got, want := int64(most)-int64(before.HeapAlloc), int64(16*maxStates+16<<20); got > want {
		t.Errorf("60 streams of 20 MiB: got %d MiB more in memory, want %d at most", got>>20, want>>20)
	}
}

// TestStreamOfAStrangerIsBounded checks that one stream may not use all the room. Memberlist gets the beginning of a
// stream that is too long, and an error.
func TestStreamOfAStrangerIsBounded(t *testing.T) {
	t.Parallel()
	network := listening(t)
	from, err := net.Dial("tcp", network.address())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for part := make([]byte, 64<<10); err == nil; {
			_, err = from.Write(part)
		}
	}()
	to := <-network.StreamCh()
	taken, failed := io.Copy(io.Discard, to)
	_ = to.Close()
	<-sent
	if failed == nil || taken < maxState-1<<20 || taken > maxState {
		t.Errorf("got %d bytes taken, then %v, want about %d and an error", taken, failed, maxState)
	}
	if held := network.held.Load(); held != 0 {
		t.Errorf("got %d bytes counted after the stream was closed, want 0", held)
	}
}

// TestLongPacketsAreDropped checks that packets that no member sends are dropped.
func TestLongPacketsAreDropped(t *testing.T) {
	t.Parallel()
	network := listening(t)
	from, err := net.Dial("udp", network.address())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	for _, size := range []int{maxPacket + 1, 100} {
		if _, err := from.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	if p := <-network.PacketCh(); len(p.Buf) != 100 || cap(p.Buf) > maxPacket {
		t.Errorf("got %d bytes, %d kept, want 100", len(p.Buf), cap(p.Buf))
	}
}

// listening returns a transport from which only the test reads.
func listening(t *testing.T) *boundTransport {
	t.Helper()
	conf := memberlist.DefaultLANConfig()
	conf.BindAddr, conf.BindPort, conf.LogOutput = "127.0.0.1", 0, &bytes.Buffer{}
	network, err := newBoundTransport(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Shutdown() })
	return network
}

// address returns the address of the transport.
func (t *boundTransport) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.GetAutoBindPort()))
}

func key(letter string) []byte { return []byte(strings.Repeat(letter, 16)) }

// TestStrangersStayOut checks that processes with another key, without a key or of another cluster do not join.
func TestStrangersStayOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  Config
		in   bool
	}{
		{"the same key", Config{Keys: [][]byte{key("a")}}, true},
		{"another key", Config{Keys: [][]byte{key("b")}}, false},
		{"no key", Config{}, false},
		{"another cluster", Config{Keys: [][]byte{key("a")}, Cluster: "d"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, n *network) {
				inside := start(t, n, Config{Node: "n1", TTL: ttl, Keys: [][]byte{key("a")}})
				tries := make(chan struct{}, 100)
				other := start(t, n, knocking(tt.cfg, inside, tries))
				if tt.in {
					eventually(t, "it is let in", func() bool { return agree([]*process{inside}, Alive, other) })
					return
				}
				for range 4 { // the fourth attempt begins when the third has failed
					<-tries
				}
				if got := inside.State(other.instance()); got != Unknown {
					t.Errorf("inside: got %s, want unknown", got)
				}
				if got := other.State(inside.instance()); got != Unknown {
					t.Errorf("outside: got %s, want unknown", got)
				}
			})
		})
	}
}

// knocking returns the configuration of a process that joins another process again and again, and
// counts its tries.
func knocking(cfg Config, at *process, tries chan<- struct{}) Config {
	cfg.Node, cfg.TTL = "n2", ttl
	cfg.Peers = func(context.Context) ([]string, error) {
		select {
		case tries <- struct{}{}:
		default:
		}
		return []string{at.Address()}, nil
	}
	return cfg
}

// TestKeyRotation restarts the nodes in turn, with the new key in the second place, then in the first, then alone. Each
// node that starts finds the others, and they hear its updates, for every mixture of keys.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		a, b := key("a"), key("b")
		all := startAll(t, n, Config{TTL: ttl, Keys: [][]byte{a}}, "n1", "n2", "n3")
		for round, keys := range [][][]byte{{a, b}, {b, a}, {b}} {
			for i, p := range all {
				p.leave()
				next := (i + 1) % len(all)
				name := fmt.Sprintf("n%d-%d", i+1, round)
				all[i] = start(t, n, Config{Node: name, TTL: ttl, Keys: keys, Join: []string{all[next].Address()}})
				eventually(t, name+" and the others see each other", func() bool { return agree(all, Alive, all...) })
			}
		}
	})
}
