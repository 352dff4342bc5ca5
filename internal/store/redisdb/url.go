package redisdb

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// parseOptions returns go-redis's options for a URL. go-redis must not retry by itself, because
// callers repeat by the rules of each script (docs/design.md).
func parseOptions(cfg Config) (*redis.UniversalOptions, error) {
	opts := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Protocol: 2, DisableIdentity: true,
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		PoolSize: cfg.PoolSize, DialerRetries: 1,
	}
	scheme, rest, ok := strings.Cut(cfg.URL, "://")
	if !ok {
		return nil, errors.New("it must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://")
	}
	if secure, ok := strings.CutPrefix(scheme, "rediss"); ok {
		scheme, opts.TLSConfig = "redis"+secure, tlsConfig(cfg.TLS)
	} else if cfg.TLS != nil {
		return nil, errors.New("there are TLS settings for it, but no TLS in it; it must begin with rediss://, rediss+sentinel:// or rediss+cluster://")
	}
	switch scheme {
	case "redis", "redis+sentinel", "redis+cluster":
	case "unix", "redis+unix":
		return nil, errors.New("a Unix socket is not supported; it must be redis://host:port")
	default:
		return nil, fmt.Errorf("scheme %q; it must be redis, redis+sentinel, redis+cluster, or rediss for TLS", scheme)
	}
	opts.Dialer = newDialer(opts.TLSConfig, cfg.Timeout)
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
		if opts.Username != "" && opts.Password == "" { // the client would send neither
			return nil, fmt.Errorf("a user without a password; it must be %s://USER:PASSWORD@host, or %s://:PASSWORD@host for a password alone", scheme, scheme)
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
	if err := setKind(opts, scheme, path); err != nil || !hasQuery {
		return opts, err
	}
	return opts, sentinelLogin(opts, query)
}

// tlsConfig leaves the server's name open. Each connection uses the name of its address.
func tlsConfig(configured *tls.Config) *tls.Config {
	if configured != nil {
		return configured
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

// setKind sets the options that differ between single Redis, Sentinel and Cluster.
func setKind(opts *redis.UniversalOptions, scheme, path string) error {
	path = strings.Trim(path, "/")
	switch scheme {
	case "redis":
		if len(opts.Addrs) > 1 {
			return errors.New("several hosts; it must be redis+sentinel:// or redis+cluster://")
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
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return fmt.Errorf("database %q; it must be a number", path)
	}
	opts.DB = db
	return nil
}

func hostPort(host, scheme string) (string, error) {
	switch {
	case host == "":
		return "", errors.New("host is missing")
	case strings.Contains(host, "?") && scheme == "redis+sentinel":
		return "", errors.New("'?' must follow the master, as in redis+sentinel://host:port/master?sentinel_user=…&sentinel_password=…")
	case strings.Contains(host, "?"):
		return "", errors.New("only redis+sentinel:// takes parameters")
	}
	if name, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("port %q; it must be a number from 1 to 65535", port)
		}
		if name == "" {
			return "", errors.New("host is missing")
		}
		return host, nil
	}
	port := "6379"
	if strings.HasPrefix(scheme, "redis+sentinel") {
		port = "26379"
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), nil
}

// sentinelLogin parses the user and the password for sentinels. Until they are parsed, names and
// values are treated as secrets. So no error shows them.
func sentinelLogin(opts *redis.UniversalOptions, query string) error {
	fields := map[string]*string{"sentinel_user": &opts.SentinelUsername, "sentinel_password": &opts.SentinelPassword}
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		field := fields[name]
		if field == nil || opts.MasterName == "" {
			return errors.New("only redis+sentinel:// takes parameters; they must be sentinel_user and sentinel_password, URL-encoded")
		}
		text, err := url.PathUnescape(value)
		if err != nil {
			return fmt.Errorf("%s is not URL-encoded", name)
		}
		*field = text
	}
	if opts.SentinelUsername != "" && opts.SentinelPassword == "" {
		return errors.New("sentinel_user needs sentinel_password")
	}
	return nil
}

// MaskURL hides the passwords in a Redis URL, even in a URL that [Open] refuses.
func MaskURL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		if at := strings.LastIndex(raw, "@"); at >= 0 {
			return "***" + raw[at:] // not a Redis URL, so its parts are unknown
		}
		return raw
	}
	_, path, _ := strings.Cut(rest, "/")
	if _, query, _ := strings.Cut(path, "?"); strings.Contains(query, "@") {
		return scheme + "://***" // a login with '/' and '?' in it, or a query with '@'
	}
	login, hosts := "", rest
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user, _, both := strings.Cut(rest[:at], ":")
		if login, hosts = user+":***@", rest[at+1:]; !both {
			login = "***@" // mostly a password without its colon
		}
	}
	if strings.Contains(login, "?") {
		login = "***@" // a query with '@', and no '/' before it
	}
	if hosts, _, ok = strings.Cut(hosts, "?"); ok {
		hosts += "?***"
	}
	return scheme + "://" + login + hosts
}
