package protocol

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestWrongRedisIsNamed checks that the error for a Redis that cannot be used says what would be right.
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
	locked := redistest.Start(t)
	admin, err := Open(Config{Redis: locked.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.DB().Do(t.Context(), "lock", "CONFIG", "SET", "requirepass", "s3cret"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DB().Do(t.Context(), "add a user", "ACL", "SETUSER", "poor", "on", ">poor", "~*", "&*", "+@all", "-hget"); err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	check := func(ctx context.Context, c *Client) error { _, err := c.Check(ctx, false); return err }
	for _, c := range []struct {
		name, url string
		do        func(context.Context, *Client) error
		want      string
		denied    bool
	}{
		{"rediss to a plain Redis", "rediss://" + master.Addr(), check, "if it does not speak TLS, use redis:// instead of rediss://, or its TLS port", false},
		{"rediss to a plain Redis, without a check", "rediss://" + master.Addr(), register, "if it does not speak TLS, use redis:// instead of rediss://, or its TLS port", false},
		{"no password", locked.URL(), register, "asks for a password (its URL must be redis://:PASSWORD@host:port, with a user redis://USER:PASSWORD@host:port)", true},
		{"wrong password", "redis://:s4cret@" + locked.Addr(), register, "does not know the user or the password in its URL", true},
		{"no permission", "redis://poor:poor@" + locked.Addr(), check, "add to its ACL rules: +hget", true},
		{"no permission, without a check", "redis://poor:poor@" + locked.Addr(), register, "redis " + locked.Addr() + " answered: ", true},
		{"no such database", "redis://" + master.Addr() + "/99", register, "does not have this database (the number at the end of its URL must be less than databases in its redis.conf)", false},
		{"no cluster", "redis+cluster://" + master.Addr(), register, "is no Redis Cluster (its URL must be redis://, or redis+sentinel:// with a sentinel)", false},
		{"no sentinel", "redis+sentinel://" + master.Addr() + "/m", register, "is no sentinel (the URL must have the address of a sentinel", false},
		{"no Redis", "redis://" + page.Listener.Addr().String(), register, "does not answer as a Redis does (its URL must have the port of Redis, mostly 6379)", false},
		{"replica", replica.URL(), register, "is a replica and takes no writes (use the address of its master, or redis+sentinel://, which finds it)", false},
		{"evicting", evicting.URL(), check, "has maxmemory-policy allkeys-lru and may drop jobs; set maxmemory-policy noeviction in its redis.conf (or CONFIG SET maxmemory-policy noeviction), or accept the loss with node.allow_eviction", true},
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
			if err := c.do(t.Context(), client); err == nil || !strings.Contains(err.Error(), c.want) || Denied(err) != c.denied {
				t.Errorf("got %v, denied %t; want %q, denied %t", err, Denied(err), c.want, c.denied)
			}
		})
	}
}
