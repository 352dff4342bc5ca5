package redistest

import (
	"net"
	"sync"
	"time"
)

// link is a client connection with its own connection to Redis. Two goroutines serve it, for requests and for replies.
type link struct {
	proxy         *Proxy
	client, redis net.Conn
	closed        chan struct{}
	closeOnce     sync.Once

	mu    sync.Mutex // guards count
	count tally
}

// tally matches replies to requests, because Redis answers in order.
type tally struct {
	sent     int // requests forwarded to Redis
	answered int // replies of Redis to them
	cutFrom  int // number of the first request whose reply is lost; 0 for none
	ending   bool
}

// isOver reports whether an ending link has no reply left to wait for.
func (c tally) isOver() bool { return c.ending && c.answered >= c.sent }

// losesReply reports whether the last reply must not reach the client.
func (c tally) losesReply() bool { return c.cutFrom > 0 && c.answered >= c.cutFrom }

func newLink(p *Proxy, client, redis net.Conn) *link {
	return &link{proxy: p, client: client, redis: redis, closed: make(chan struct{})}
}

// forwardBoth forwards both ways until either side has ended.
func (l *link) forwardBoth() {
	l.proxy.work.Go(func() {
		defer l.close()
		_ = readPieces(l.redis, l.passReply)
	})
	if !l.readRequests() {
		l.close()
	}
	<-l.closed
}

// readRequests returns true if the link must end after its replies.
func (l *link) readRequests() bool {
	var buf []byte
	piece := make([]byte, 256<<10)
	for {
		n, err := l.client.Read(piece)
		if err != nil || !l.holdBack() {
			return false
		}
		buf = append(buf, piece[:n]...)
		rest, err := l.forwardRequests(buf)
		if err != nil {
			return false
		}
		if l.finishing() {
			return true
		}
		buf = rest
	}
}

// forwardRequests sends the complete requests in buf to Redis and returns the rest. After a cut it marks the link as ending.
func (l *link) forwardRequests(buf []byte) (rest []byte, err error) {
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
			verdict = l.proxy.judgeRequest(words)
		}
		if verdict == loseRequest {
			return nil, l.endAfterReplies()
		}
		cut = cut || verdict == loseReply
		if err := l.sendRequest(buf[:length], words, verdict); err != nil {
			return nil, err
		}
		buf = buf[length:]
	}
	if cut {
		return nil, l.endAfterReplies()
	}
	return buf, nil
}

// sendRequest counts a request before it writes it, because the reply may come at once. Redis answers a subscription with
// push messages only.
func (l *link) sendRequest(request []byte, words []string, v verdict) error {
	l.mu.Lock()
	if !isSubscription(words) {
		l.count.sent++
	}
	if v == loseReply {
		l.count.cutFrom = l.count.sent
	}
	l.mu.Unlock()
	_, err := l.redis.Write(request)
	return err
}

// endAfterReplies closes the link now, or lets the last expected reply close it.
func (l *link) endAfterReplies() error {
	l.mu.Lock()
	l.count.ending = true
	over := l.count.isOver()
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

// passReply passes a reply on, or loses it, and reports whether to continue.
func (l *link) passReply(reply []byte, answers bool) bool {
	l.mu.Lock()
	if answers {
		l.count.answered++
	}
	lost, over := l.count.losesReply(), l.count.isOver()
	l.mu.Unlock()
	if !lost {
		if _, err := l.client.Write(reply); err != nil {
			return false
		}
	}
	return !over
}

// holdBack delays requests by the proxy's delay.
func (l *link) holdBack() bool {
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

// readPieces calls each with every complete reply from conn, until each returns false.
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
