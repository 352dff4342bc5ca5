package redisdb

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// A dial by TLS ends though its context does not and the peer never shakes hands.
func TestDialsEnd(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := newDialer(&tls.Config{InsecureSkipVerify: true}, 50*time.Millisecond)(ctx, "tcp", silent.Addr().String())
	if err == nil {
		conn.Close()
	}
	if err == nil || ctx.Err() != nil {
		t.Errorf("got %v, %v, want the dial to end by itself", err, ctx.Err())
	}
}

// Servers that are no masters are not suspected: nothing would end that.
func TestOnlyMastersAreSuspected(t *testing.T) {
	t.Parallel()
	o := &lookout{suspects: map[string]time.Time{"replica:1": time.Now(), "master:1": time.Now()}, patience: time.Hour}
	o.keepMasters(map[string]bool{"master:1": true, "master:2": true})
	if o.isSuspected("replica:1") || !o.isSuspected("master:1") || !o.hasSuspects() {
		t.Errorf("got %v, want the master alone", o.suspects)
	}
}
