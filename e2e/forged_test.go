//go:build linux

package e2e

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// What memberlist puts first in packets and streams.
const (
	gossipPing, gossipAlive, gossipCompound   = 0, 4, 7
	gossipCompressed, gossipSealed, gossipCRC = 9, 10, 12
	gossipLabel                               = 244
)

// forgery is what a stranger sends to the port of gossip.
type forgery struct {
	name   string
	packet []byte // by UDP
	stream []byte // by TCP, and what comes of it afterwards
}

// labelled is a message of a cluster.
func labelled(cluster string, message ...byte) []byte {
	return append(append([]byte{gossipLabel, byte(len(cluster))}, cluster...), message...)
}

// sealedWith is a message as memberlist encrypts it.
func sealedWith(t *testing.T, key []byte, cluster string, message []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	rand.Read(nonce) //nolint:errcheck // it never fails
	return gcm.Seal(append([]byte{1}, nonce...), nonce, message, []byte(cluster))
}

// bomb is a short message of a gigabyte: compressed zeroes, in MessagePack as memberlist has it.
func bomb(t *testing.T, size int) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	zeroes := make([]byte, 1<<20)
	for range size / len(zeroes) {
		if _, err := w.Write(zeroes); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	message := append([]byte{gossipCompressed, 0x82, 0xa4}, "Algo"...)
	message = append(append(message, 0x00, 0xa3), "Buf"...)
	message = binary.BigEndian.AppendUint32(append(message, 0xc6), uint32(packed.Len()))
	return append(message, packed.Bytes()...)
}

// TestForgedGossip sends noise and gossip of another key by UDP and TCP from a host that lacks the key. The node works
// on, its memory is bounded, and its log names the sender.
func TestForgedGossip(t *testing.T) {
	t.Parallel()
	const mostMemory = 2*4*16 + 150 // MiB more; see floodBudget: streams, without the requests
	r := newRig(t, 4)
	addresses := redistest.Addresses(t, 3)
	bind, api := addresses[0], addresses[2]
	key := bytes.Repeat([]byte("k"), 32)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	p := r.run("lowkiq-node", []string{"LOWKIQ_NODE_GOSSIP_KEY_FILE=" + file}, "sh", "-c", `exec 2>"$0" "$@"`, log,
		built.Path(t, ".."), "run", "--config", r.config(`{exec: [sh, -c, 'while read -r l; do echo "{\"ok\":true}"; done'], processes: 1}`), "--bind", bind, "--http", api)
	r.await("the node lives", patience, func() bool { return ask(t.Context(), "GET", "http://"+api+"/healthz", "", nil) == nil })
	r.leased(p, 1)
	before := memoryOf(t, p.pid(), "VmRSS")

	other, cluster := bytes.Repeat([]byte("o"), 32), r.cluster
	alive := append([]byte{gossipAlive, 0x81, 0xa4}, "Node\xa1x"...)
	bombs := bomb(t, 256<<20)
	long := func(n uint32, kind byte) []byte { return binary.BigEndian.AppendUint32(labelled(cluster, kind), n) }
	forgeries := []forgery{
		{"plain", labelled(cluster, alive...), labelled(cluster, alive...)},
		{"no label", alive, alive},
		{"another cluster", labelled("other", alive...), labelled("other", alive...)},
		{"another key", labelled(cluster, sealedWith(t, other, cluster, alive)...), append(long(uint32(len(alive)+29), gossipSealed), sealedWith(t, other, cluster, alive)...)},
		{"the key, sealed for another cluster", labelled(cluster, sealedWith(t, key, "other", alive)...), nil},
		{"a bomb", labelled(cluster, bombs[:min(len(bombs), 1400)]...), labelled(cluster, bombs...)},
		{"a bomb with another key", labelled(cluster, sealedWith(t, other, cluster, bombs[:min(len(bombs), 1300)])...),
			append(long(uint32(len(bombs)+29), gossipSealed), sealedWith(t, other, cluster, bombs)...)},
		{"a label that does not end", []byte{gossipLabel, 255, 'x'}, []byte{gossipLabel, 255, 'x'}},
		{"an empty label", []byte{gossipLabel, 0, gossipPing}, []byte{gossipLabel, 0, gossipPing}},
		{"two labels", labelled(cluster, labelled(cluster, alive...)...), labelled(cluster, labelled(cluster, alive...)...)},
		{"a length of 4 GiB", long(1<<32-1, gossipSealed), long(1<<32-1, gossipSealed)},
		{"a length of 20 MiB", long(20<<20, gossipSealed), append(long(20<<20, gossipSealed), make([]byte, 19<<20)...)},
		{"many parts", labelled(cluster, gossipCompound, 255, 255, 255), labelled(cluster, gossipCompound, 255, 255, 255)},
		{"a wrong sum", labelled(cluster, append([]byte{gossipCRC, 1, 2, 3, 4}, alive...)...), nil},
		{"too short", []byte{gossipLabel}, []byte{gossipLabel}},
		{"nothing", []byte{}, nil},
		{"a long packet", labelled(cluster, make([]byte, 60<<10)...), nil},
	}
	udp, err := net.Dial("udp", bind)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	// The first that is refused is named in the log; of the flood after it the node says little.
	r.await("the log names who sends with no key", patience, func() bool {
		if _, err := udp.Write(forgeries[0].packet); err != nil {
			t.Fatal(err)
		}
		said, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(said), `"level":"WARN"`) && strings.Contains(string(said), udp.LocalAddr().String())
	})
	var senders sync.WaitGroup
	for _, f := range forgeries {
		for range 200 {
			if _, err := udp.Write(f.packet); err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
		}
		for range 5 {
			if f.stream == nil {
				break
			}
			senders.Go(func() {
				conn, err := net.Dial("tcp", bind)
				if err != nil {
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(15 * time.Second)) // memberlist ends it after 10
				_, _ = conn.Write(f.stream)                            // it may be ended before that
				_, _ = conn.Read(make([]byte, 1))
			})
		}
	}
	senders.Wait()
	if !p.running() {
		t.Fatal("the node has ended")
	}
	if err := ask(t.Context(), "GET", "http://"+api+"/healthz", "", nil); err != nil {
		t.Errorf("health: got %v", err)
	}
	if most := memoryOf(t, p.pid(), "VmHWM"); most-before > mostMemory {
		t.Errorf("got %d MiB more in memory, want %d at most", most-before, mostMemory)
	}
	if _, err := r.queue.Push(t.Context(), lowkiq.Push{ID: "a", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	r.await("the node works on", patience, func() bool { stats, err := r.queue.Stats(t.Context()); return err == nil && stats.Jobs.Total() == 0 })
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if len(said) > 64<<10 {
		t.Errorf("got %d bytes of log for %d packets, want a few lines", len(said), 200*len(forgeries))
	}
	t.Logf("%d MiB before, %d MiB at most, %d bytes of log", before, memoryOf(t, p.pid(), "VmHWM"), len(said))
	p.terminate(patience)
}
