package handler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"
)

// A node whose endpoint is out of reach is given no batches, which would tell that it is back. So
// the handler looks itself, for as long as an outage lasts, and once when it starts: a connection
// that is opened and closed, no request.

const (
	unreadyAfter  = 10 * time.Second // of an outage: one restart of an endpoint moves no shard
	dialPatience  = 5 * time.Second
	maxProbePause = 5 * time.Second
)

// Ready says why batches would be postponed: there has been no connection to the endpoint for more
// than 10 s. It is nil otherwise, and with a client whose transport is not an [http.Transport]. Where
// [HTTP.Run] does not run, only a batch ends an outage.
func (h *HTTP) Ready() error {
	if lasted, why := h.down.lasts(time.Now()); h.dial != nil && lasted > unreadyAfter {
		return why
	}
	return nil
}

// Run tries to connect to the endpoint, once and then during outages, until ctx is done.
func (h *HTTP) Run(ctx context.Context) error {
	if h.dial == nil {
		<-ctx.Done()
		return nil
	}
	for {
		h.probe(ctx)
		for lasted, why := h.down.lasts(time.Now()); why != nil; lasted, why = h.down.lasts(time.Now()) {
			if !sleep(ctx, probePause(lasted, rand.Float64())) {
				return nil
			}
			h.probe(ctx)
		}
		select {
		case <-h.down.news:
		case <-ctx.Done():
			return nil
		}
		if !sleep(ctx, minOutagePause) {
			return nil
		}
	}
}

// probe connects once. It says nothing of an endpoint that answers nobody.
func (h *HTTP) probe(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	err := h.dial(short)
	switch {
	case err == nil:
		h.down.over()
	case ctx.Err() == nil:
		h.down.failed(fmt.Errorf("connect to %s: %w", h.url, err), time.Now())
	}
}

// probePause is as long as the outage has lasted, between a second and maxProbePause; of that, a
// random part between a half and the whole, so that many nodes do not come in step.
func probePause(lasted time.Duration, random float64) time.Duration {
	pause := min(max(lasted, minOutagePause), maxProbePause)
	return pause/2 + time.Duration(random*float64(pause/2))
}

// sleep reports whether ctx lasted.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// dialer knows how the client connects to the endpoint, or to its proxy; nil if it does not.
func (h *HTTP) dialer(endpoint *url.URL) func(context.Context) error {
	tripper := h.cfg.Client.Transport
	if tripper == nil {
		tripper = http.DefaultTransport
	}
	transport, known := tripper.(*http.Transport)
	if !known || !ascii(endpoint.Host) {
		return nil
	}
	return func(ctx context.Context) error {
		peer := endpoint
		if transport.Proxy != nil {
			proxy, err := transport.Proxy((&http.Request{Method: http.MethodPost, URL: endpoint, Header: http.Header{}}).WithContext(ctx))
			if err != nil {
				return errors.New("no proxy: its configuration cannot be read") // it may hold a password
			}
			if proxy != nil {
				peer = proxy
			}
		}
		dial := transport.DialContext
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		conn, err := dial(ctx, "tcp", addressOf(peer))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// addressOf is where a URL's server listens.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// ascii reports whether a name is one that needs no encoding for DNS.
func ascii(name string) bool {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return false
		}
	}
	return true
}
