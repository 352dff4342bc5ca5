package redistest

import (
	"net"
	"sync"
	"time"
)

// link is one client connection with its own connection to Redis. Two goroutines
// run it: requests and replies.
type link struct {
	proxy         *Proxy
	client, redis net.Conn
	closed        chan struct{}
	closeOnce     sync.Once

	mu    sync.Mutex // guards count
	count tally
}

// tally matches replies to requests: Redis answers in order.
type tally struct {
	sent     int // requests forwarded to Redis
	answered int // replies that Redis gave to them
	cutFrom  int // number of the first request whose reply is lost; 0 = none
	ending   bool
}

// over says that a link that is to end has no reply to wait for.
func (c tally) over() bool { return c.ending && c.answered >= c.sent }

// lost says that the reply that came last must not reach the client.
func (c tally) lost() bool { return c.cutFrom > 0 && c.answered >= c.cutFrom }

func newLink(p *Proxy, client, redis net.Conn) *link {
	return &link{proxy: p, client: client, redis: redis, closed: make(chan struct{})}
}

// run forwards both ways until either side has ended.
func (l *link) run() {
	l.proxy.work.Go(func() {
		defer l.close()
		_ = readPieces(l.redis, l.reply)
	})
	if !l.readRequests() {
		l.close()
	}
	<-l.closed
}

// readRequests returns true if the link is to end by its replies.
func (l *link) readRequests() bool {
	var buf []byte
	piece := make([]byte, 256<<10)
	for {
		n, err := l.client.Read(piece)
		if err != nil || !l.wait() {
			return false
		}
		buf = append(buf, piece[:n]...)
		rest, err := l.forward(buf)
		if err != nil {
			return false
		}
		if l.finishing() {
			return true
		}
		buf = rest
	}
}

// forward sends the complete requests in buf to Redis and returns what is left.
// After a cut it marks the link as ending.
func (l *link) forward(buf []byte) (rest []byte, err error) {
	cut := false
	for {
		words, length, err := parseRequest(buf)
		if err != nil {
			return nil, err
		}
		if length == 0 {
			break
		}
		verdict := pass
		if !cut {
			verdict = l.proxy.judge(words)
		}
		if verdict == loseRequest {
			return nil, l.end()
		}
		cut = cut || verdict == loseReply
		if err := l.send(buf[:length], words, verdict); err != nil {
			return nil, err
		}
		buf = buf[length:]
	}
	if cut {
		return nil, l.end()
	}
	return buf, nil
}

// send counts before it writes: the reply may come at once. To a subscription Redis
// answers with push messages only.
func (l *link) send(request []byte, words []string, v verdict) error {
	l.mu.Lock()
	if !subscribes(words) {
		l.count.sent++
	}
	if v == loseReply {
		l.count.cutFrom = l.count.sent
	}
	l.mu.Unlock()
	_, err := l.redis.Write(request)
	return err
}

// end closes the link now, or leaves that to the last reply it waits for.
func (l *link) end() error {
	l.mu.Lock()
	l.count.ending = true
	over := l.count.over()
	l.mu.Unlock()
	if over {
		l.close()
	}
	return nil
}

func (l *link) finishing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count.ending
}

// reply passes one reply on, or loses it, and tells whether to go on.
func (l *link) reply(reply []byte, answers bool) bool {
	l.mu.Lock()
	if answers {
		l.count.answered++
	}
	lost, over := l.count.lost(), l.count.over()
	l.mu.Unlock()
	if !lost {
		if _, err := l.client.Write(reply); err != nil {
			return false
		}
	}
	return !over
}

// wait holds a piece of requests back by the proxy's delay.
func (l *link) wait() bool {
	timer := time.NewTimer(l.proxy.currentDelay())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closed:
		return false
	}
}

func (l *link) close() {
	l.closeOnce.Do(func() {
		close(l.closed)
		_ = l.client.Close()
		_ = l.redis.Close()
	})
}

// readPieces calls each with every complete reply that conn brings, until each
// returns false.
func readPieces(conn net.Conn, each func(reply []byte, answers bool) bool) error {
	var buf []byte
	piece := make([]byte, 256<<10)
	for {
		n, err := conn.Read(piece)
		if err != nil {
			return err
		}
		buf = append(buf, piece[:n]...)
		for {
			length, answers, err := replyLength(buf)
			if err != nil {
				return err
			}
			if length == 0 {
				break
			}
			if !each(buf[:length], answers) {
				return nil
			}
			buf = buf[length:]
		}
	}
}
