package protocol

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Config is a queue.Config.
type Config struct {
	Redis       string
	Cluster     string
	TLS         *tls.Config
	Timeout     time.Duration
	PoolSize    int
	Middlewares []Middleware
}

func (cfg Config) withDefaults() Config {
	if cfg.Redis == "" {
		cfg.Redis = "redis://127.0.0.1:6379/0"
	}
	if cfg.Cluster == "" {
		cfg.Cluster = "default"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	return cfg
}

// Client talks to the Redis of a cluster, for producers and nodes. It is safe for concurrent use.
type Client struct {
	cfg Config
	db  *redisdb.DB

	registry *Registry
	replies  *replies // to this client's calls
}

// Open validates cfg and returns a client. It does not connect to Redis; [Client.Check] does.
func Open(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := CheckName("cluster", cfg.Cluster); err != nil {
		return nil, err
	}
	db, err := redisdb.Open(redisdb.Config{URL: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.TLS, Timeout: cfg.Timeout, PoolSize: cfg.PoolSize})
	if err != nil {
		return nil, err
	}
	return newClient(cfg, db), nil
}

func newClient(cfg Config, db *redisdb.DB) *Client {
	g := &Registry{db: db, cfg: cfg, queues: map[string]*Queue{}, rules: map[string]PushRules{}, liveLimits: map[string]rules.Push{}, deadTo: map[string]string{}, pushCounts: newPushCounts(db)}
	g.shared = newSharedRequests(g)
	c := &Client{cfg: cfg, db: db, registry: g}
	c.replies = newReplies(c)
	return c
}

// Registry returns the registry of queues, which holds what producers and nodes must agree on.
func (c *Client) Registry() *Registry { return c.registry }

// DB returns the connection, for the packages below this package.
func (c *Client) DB() *redisdb.DB { return c.db }

// Leases returns the leases of the cluster's instances.
func (c *Client) Leases() *lease.Index { return lease.In(c.db) }

// Time returns the time by Redis's clock.
func (c *Client) Time(ctx context.Context) (time.Time, error) { return c.db.Time(ctx) }

// Close ends the client, as queue.Client.Close does.
func (c *Client) Close() error {
	c.replies.close()
	c.registry.pushCounts.close()
	err := c.db.Close()
	c.replies.work.Wait()
	return err
}

// Cluster returns the name of the cluster whose keys the client uses.
func (c *Client) Cluster() string { return c.cfg.Cluster }

// Redis returns the address of Redis for people, with hosts and without credentials.
func (c *Client) Redis() string { return c.db.Address() }

// Server describes a Redis server, as it reports itself.
type Server = redisdb.Server

// Check connects to Redis, reads its properties and loads the scripts. It fails if Redis is out of reach or too
// old, if it may evict jobs and allowEviction is false, or if the user lacks a permission. It asks every
// master of a cluster, and with Sentinel the master and every sentinel that answers.
func (c *Client) Check(ctx context.Context, allowEviction bool) (Server, error) {
	return c.db.Check(ctx, allowEviction)
}

// Memory describes the memory of a Redis server.
type Memory = redisdb.Memory

// Memory asks every master about its memory. It fails if a master does not answer.
func (c *Client) Memory(ctx context.Context) ([]Memory, error) { return c.db.Memory(ctx) }

// Info returns the properties of every master. It fails if a master does not answer.
func (c *Client) Info(ctx context.Context) ([]Server, error) { return c.db.Info(ctx) }
