package membership

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/memberlist"

	"github.com/lowkiq/lowkiq/internal/network/connlimit"
)

// Limits on the bytes of unknown senders. Memberlist authenticates a stream only at its end, and
// keeps it in memory until then, up to 20 MiB for each stream.
const (
	maxStreams     = 128      // at once; another stream closes the oldest stream of the address with the most streams
	maxStreamsFrom = 64       // from one address, which several nodes may share
	maxState       = 8 << 20  // bytes of a stream; it is the state of some 10,000 members
	maxStates      = 16 << 20 // bytes of all streams at once
	maxPacket      = 4 << 10  // bytes; memberlist sends 1,400 at most
)

var errStates = errors.New("gossip streams are in memory with as many bytes as they may")

// boundTransport is the network with limits on the bytes that come in before authentication.
type boundTransport struct {
	*memberlist.NetTransport
	streams chan net.Conn
	packets chan *memberlist.Packet
	conns   *connlimit.Set
	held    *atomic.Int64 // bytes of all streams
	done    chan struct{}
	end     sync.Once // memberlist may call Shutdown, and so may openList
	pumps   sync.WaitGroup
}

// newBoundTransport opens the ports of a configuration. If the port is 0, it looks for a number that is free for TCP and UDP.
func newBoundTransport(conf *memberlist.Config) (*boundTransport, error) {
	tries := 1
	if conf.BindPort == 0 {
		tries = 10
	}
	settings := &memberlist.NetTransportConfig{BindAddrs: []string{conf.BindAddr}, BindPort: conf.BindPort, Logger: log.New(conf.LogOutput, "", 0)}
	network, err := memberlist.NewNetTransport(settings)
	for ; tries > 1 && err != nil && strings.Contains(err.Error(), syscall.EADDRINUSE.Error()); tries-- {
		network, err = memberlist.NewNetTransport(settings)
	}
	if err != nil {
		return nil, err
	}
	t := &boundTransport{
		NetTransport: network, streams: make(chan net.Conn), packets: make(chan *memberlist.Packet), done: make(chan struct{}),
		conns: connlimit.New(connlimit.Limit{Total: maxStreams, PerAddress: maxStreamsFrom}), held: new(atomic.Int64),
	}
	t.pumps.Go(t.passStreams)
	t.pumps.Go(t.passPackets)
	return t, nil
}

// StreamCh returns the connections from others.
func (t *boundTransport) StreamCh() <-chan net.Conn { return t.streams }

// PacketCh returns the packets from others.
func (t *boundTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *boundTransport) passStreams() {
	for {
		select {
		case <-t.done:
			return
		case conn := <-t.NetTransport.StreamCh():
			added := t.conns.Add(conn)
			if added == nil {
				continue
			}
			select {
			case t.streams <- &stream{Conn: added, held: t.held}:
			case <-t.done:
				_ = added.Close()
			}
		}
	}
}

// passPackets drops packets that are too long for a member. It copies the others, because the reader
// uses a buffer of 64 KiB for each packet.
func (t *boundTransport) passPackets() {
	for {
		select {
		case <-t.done:
			return
		case p := <-t.NetTransport.PacketCh():
			if len(p.Buf) > maxPacket {
				continue
			}
			p.Buf = slices.Clone(p.Buf)
			select {
			case t.packets <- p:
			case <-t.done:
			}
		}
	}
}

// Shutdown closes the ports. The listeners may pass on a packet or stream until they have ended.
func (t *boundTransport) Shutdown() error {
	var err error
	t.end.Do(func() {
		err = t.NetTransport.Shutdown()
		close(t.done)
		t.pumps.Wait()
	})
	return err
}

// stream is a connection whose bytes count against maxStates until it is closed.
type stream struct {
	net.Conn
	held *atomic.Int64 // bytes of all streams
	mine atomic.Int64
	over atomic.Bool // its bytes do not count any more
}

// Read ends a stream that sends more than the state of a large cluster. It also ends a stream whose bytes would exceed
// maxStates together with the bytes of other streams.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	size := int64(n)
	if s.mine.Add(size) > maxState {
		err = fmt.Errorf("a gossip stream of more than %d bytes", maxState)
	} else if s.held.Load()+size > maxStates {
		err = errStates
	}
	s.held.Add(size)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return n, err
}

// Close stops counting the bytes, because memberlist has read or dropped them.
func (s *stream) Close() error {
	if s.over.CompareAndSwap(false, true) {
		s.held.Add(-s.mine.Load())
	}
	return s.Conn.Close()
}
