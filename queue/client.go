package queue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
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
	cfg     Config
	rdb     redis.UniversalClient
	address string // for people: hosts without credentials
	// sentinels are how to reach them; nil without Sentinel.
	sentinels *sentinels
	scripts   *scripts
	// replicas of the masters; claims wait for one.
	replicas replicas

	mu     sync.Mutex
	queues map[string]*Queue    // by name, as registered; guarded by mu
	rules  map[string]PushRules // by queue; guarded by mu
}

// Open validates cfg and builds a client. It does not connect; [Client.Check] does.
func Open(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := CheckName("cluster", cfg.Cluster); err != nil {
		return nil, err
	}
	opts, err := options(cfg)
	if err != nil {
		return nil, fmt.Errorf("redis address %q: %w", MaskURL(cfg.Redis), err)
	}
	c := &Client{
		cfg: cfg, rdb: redis.NewUniversalClient(opts), address: strings.Join(opts.Addrs, ","),
		scripts: newScripts(), queues: map[string]*Queue{}, rules: map[string]PushRules{},
	}
	if opts.MasterName != "" {
		c.sentinels = &sentinels{opts}
		c.rdb.AddHook(knownMaster{opts.MasterName})
	}
	return c, nil
}

// Close gives the connections back. It may be called twice.
func (c *Client) Close() error {
	if err := c.rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close redis %s: %w", c.address, err)
	}
	return nil
}

// Cluster is the name of the cluster whose keys the client uses.
func (c *Client) Cluster() string { return c.cfg.Cluster }

// Redis is the address for people: hosts, no credentials.
func (c *Client) Redis() string { return c.address }

// options turns the URL into go-redis's options. go-redis must not retry by itself:
// the callers repeat by the rules of each script (design, section 5).
func options(cfg Config) (*redis.UniversalOptions, error) {
	opts := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Protocol: 2, DisableIdentity: true,
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		PoolSize: cfg.PoolSize, DialerRetries: 1,
	}
	scheme, rest, ok := strings.Cut(cfg.Redis, "://")
	if !ok {
		return nil, errors.New("want redis://, rediss://, redis+sentinel:// or redis+cluster://")
	}
	if secure, ok := strings.CutPrefix(scheme, "rediss"); ok {
		scheme, opts.TLSConfig = "redis"+secure, tlsConfig(cfg.TLS)
	} else if cfg.TLS != nil {
		return nil, errors.New("there are TLS settings for it, but no TLS in it: want rediss://, rediss+sentinel:// or rediss+cluster://")
	}
	authority, path, _ := strings.Cut(rest, "/")
	path, query, hasQuery := strings.Cut(path, "?")
	if strings.Contains(path+query, "@") {
		return nil, errors.New("a user or password with a '/' in it must be URL-encoded")
	}
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		opts.Username, err1 = url.PathUnescape(user)
		opts.Password, err2 = url.PathUnescape(password)
		if err := errors.Join(err1, err2); err != nil {
			return nil, errors.New("user or password is not URL-encoded")
		}
		authority = authority[at+1:]
	}
	for host := range strings.SplitSeq(authority, ",") {
		addr, err := hostPort(host, scheme)
		if err != nil {
			return nil, err
		}
		opts.Addrs = append(opts.Addrs, addr)
	}
	if err := kind(opts, scheme, path); err != nil || !hasQuery {
		return opts, err
	}
	return opts, sentinelLogin(opts, query)
}

// tlsConfig leaves the server's name open: it is that of each connection's address.
func tlsConfig(configured *tls.Config) *tls.Config {
	if configured != nil {
		return configured
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

// kind sets what differs between single Redis, Sentinel and Cluster.
func kind(opts *redis.UniversalOptions, scheme, path string) error {
	path = strings.Trim(path, "/")
	switch scheme {
	case "redis":
		if len(opts.Addrs) > 1 {
			return errors.New("several hosts: want redis+sentinel:// or redis+cluster://")
		}
	case "redis+sentinel":
		master, db, _ := strings.Cut(path, "/")
		if master == "" {
			return errors.New("name the master: redis+sentinel://host:port/master")
		}
		opts.MasterName, path = master, db
	case "redis+cluster":
		opts.IsClusterMode = true
		if path != "" && path != "0" {
			return errors.New("a Redis Cluster has database 0 only")
		}
	default:
		return fmt.Errorf("scheme %q: want redis, redis+sentinel, redis+cluster, or rediss for TLS", scheme)
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return fmt.Errorf("database %q: want a number", path)
	}
	opts.DB = db
	return nil
}

func hostPort(host, scheme string) (string, error) {
	switch {
	case host == "":
		return "", errors.New("host is missing")
	case strings.Contains(host, "?"):
		return "", errors.New("'?' follows a '/': want redis+sentinel://host:port/master?sentinel_user=…&sentinel_password=…")
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host, nil
	}
	port := "6379"
	if strings.HasPrefix(scheme, "redis+sentinel") {
		port = "26379"
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), nil
}

// eachMaster calls fn for every master; for a single Redis, for that one.
func (c *Client) eachMaster(ctx context.Context, fn func(context.Context, redis.UniversalClient) error) error {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return fn(ctx, node) })
	}
	return fn(ctx, c.rdb)
}

// addressOf is where a master of eachMaster is. What go-redis calls the master of the
// sentinels is no address: the sentinels' stand for it.
func (c *Client) addressOf(node redis.UniversalClient) string {
	if single, ok := node.(*redis.Client); ok && c.rdb != node {
		return single.Options().Addr
	}
	return c.address
}
