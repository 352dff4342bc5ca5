package queue

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestWrongRedisIsNamed: the error for a Redis that cannot be used says what would be right.
func TestWrongRedisIsNamed(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	evicting := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	register := func(ctx context.Context, c *Client) error {
		_, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1})
		return err
	}
	check := func(ctx context.Context, c *Client) error { _, err := c.Check(ctx, false); return err }
	for _, c := range []struct {
		name, url string
		do        func(context.Context, *Client) error
		want      string
	}{
		{"rediss to a plain Redis", "rediss://" + master.Addr(), check, "if it does not speak TLS, use redis:// instead of rediss://, or its TLS port"},
		{"replica", replica.URL(), register, "is a replica and takes no writes (use the address of its master, or redis+sentinel://, which finds it)"},
		{"evicting", evicting.URL(), check, "has maxmemory-policy allkeys-lru and may drop jobs; set maxmemory-policy noeviction in its redis.conf (or CONFIG SET maxmemory-policy noeviction), or accept the loss with node.allow_eviction"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute
			if strings.HasPrefix(c.url, "rediss") {
				timeout = time.Second // a plain Redis waits for the rest of the handshake
			}
			client, err := Open(Config{Redis: c.url, Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			if err := c.do(t.Context(), client); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
