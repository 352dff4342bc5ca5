package queue

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Config says which Redis and which cluster of nodes. The zero value of a field is
// its default.
type Config struct {
	// Redis is where the jobs live. Default redis://127.0.0.1:6379/0.
	//
	//	redis://[user:password@]host:port/db
	//	redis+sentinel://[user:password@]host:port,host:port/master[/db][?sentinel_user=…&sentinel_password=…]
	//	redis+cluster://[user:password@]host:port,host:port
	//
	// With rediss instead of redis it is TLS, with the sentinels too. The login before the
	// hosts is that of Redis; sentinels that ask for one have their own.
	Redis string
	// Cluster separates the keys of clusters that share a Redis. Default "default".
	Cluster string
	// TLS overrides the TLS settings of a rediss:// URL: TLS 1.2, the system's
	// authorities, no client certificate. Without a ServerName each server is verified by
	// the address it is dialled at: that of the URL, and what a cluster or the sentinels
	// announce. With one all servers and sentinels must have that name.
	TLS *tls.Config
	// Timeout of one command, also of dialling. Default 5 s.
	Timeout time.Duration
	// PoolSize is the number of connections per Redis node. Default 10 per CPU.
	PoolSize int
	// Middlewares wrap this client's pushes to any queue, the first one outermost, around
	// those that belong to one queue (PushRules).
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

// Client talks to the Redis of one cluster. It is safe for concurrent use.
type Client struct {
	cfg Config
	db  *redisdb.DB

	registry *Registry
	replies  *replies // to its calls
}

// Open validates cfg and builds a client. It does not connect; [Client.Check] does.
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
	g := &Registry{db: db, cfg: cfg, queues: map[string]*Queue{}, rules: map[string]PushRules{}, live: map[string]Limits{}, pushes: newPushes(db)}
	g.sharing = newSharing(g)
	c := &Client{cfg: cfg, db: db, registry: g}
	c.replies = newReplies(c)
	return c
}

// Registry is what producers and nodes agree on about queues.
func (c *Client) Registry() *Registry { return c.registry }

// DB is the connection, for the packages below this one.
func (c *Client) DB() *redisdb.DB { return c.db }

// Leases are those of the cluster's instances.
func (c *Client) Leases() *lease.Index { return lease.In(c.db) }

// Time is Redis's clock.
func (c *Client) Time(ctx context.Context) (time.Time, error) { return c.db.Time(ctx) }

// Close gives the connections back, and ends calls that wait, with ErrClosed. It may be called twice. What the client has pushed
// in its last ten seconds is written into the figures of the day: that takes a moment, and two seconds where Redis does not
// answer.
func (c *Client) Close() error {
	c.replies.close()
	c.registry.pushes.close()
	err := c.db.Close()
	c.replies.work.Wait()
	return err
}

// Cluster is the name of the cluster whose keys the client uses.
func (c *Client) Cluster() string { return c.cfg.Cluster }

// Redis is the address for people: hosts, no credentials.
func (c *Client) Redis() string { return c.db.Address() }

// Server is what one Redis server says of itself.
type Server = redisdb.Server

// Check connects, reads what the server is and sends it the scripts. It fails when
// Redis is out of reach, too old, may evict jobs at will, or does not permit what the
// client does. Of a cluster every master is asked, of Sentinel the master and every sentinel
// that answers.
func (c *Client) Check(ctx context.Context, allowEviction bool) (Server, error) {
	return c.db.Check(ctx, allowEviction)
}

// Info asks every master what it says of itself. It fails if one of them says nothing.
func (c *Client) Info(ctx context.Context) ([]Server, error) { return c.db.Info(ctx) }

// run calls a script. That a shard refuses the caller is a [FencedError], that its queue is
// deleted a lowkiq.ErrUnknownQueue.
func run(ctx context.Context, db *redisdb.DB, s *redisdb.Script, keys []string, args ...any) (any, error) {
	reply, err := db.Run(ctx, s, keys, args...)
	return reply, refusal(err)
}
