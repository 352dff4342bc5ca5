package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Server is what Redis says of itself. Unknown fields are empty: a proxy or an
// emulation may not tell.
type Server struct {
	Version         string
	MaxMemoryPolicy string
	AOF             bool
	AOFKnown        bool
	Cluster         bool
}

// The oldest Redis whose commands the scripts use: LPOP with a count came with 6.2.
const minMajor, minMinor = 6, 2

// Check connects, reads what the server is and sends it the scripts. It fails when
// Redis is out of reach, too old, may evict jobs at will, or does not permit what the
// client does. Of a cluster every master is asked, of Sentinel the master and every sentinel
// that answers.
func (c *Client) Check(ctx context.Context, allowEviction bool) (Server, error) {
	var server Server
	if err := c.rdb.Ping(ctx).Err(); err != nil {
		return server, c.refusedToConnect(ctx, err)
	}
	var mu sync.Mutex // guards server: a cluster's masters are asked at once
	err := c.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		one := c.inspect(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		server = one
		return one.refuse(c.address, allowEviction)
	})
	if err != nil {
		return server, err
	}
	if err := c.checkPermissions(ctx); err != nil {
		return server, err
	}
	return server, c.Load(ctx)
}

func (c *Client) inspect(ctx context.Context, node redis.UniversalClient) Server {
	// Sections are asked for one by one: an emulation may know some of them only.
	info := map[string]string{}
	for _, section := range []string{"server", "memory", "persistence"} {
		text, err := node.Info(ctx, section).Result()
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[key] = value
			}
		}
	}
	aof, known := info["aof_enabled"]
	return Server{
		Version: info["redis_version"], MaxMemoryPolicy: info["maxmemory_policy"],
		AOF: aof == "1", AOFKnown: known, Cluster: info["redis_mode"] == "cluster",
	}
}

func (s Server) refuse(address string, allowEviction bool) error {
	major, rest, _ := strings.Cut(s.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (x < minMajor || x == minMajor && y < minMinor) {
		return fmt.Errorf("redis %s is version %s: want %d.%d or later", address, s.Version, minMajor, minMinor)
	}
	if s.MaxMemoryPolicy != "" && s.MaxMemoryPolicy != "noeviction" && !allowEviction {
		return fmt.Errorf("redis %s has maxmemory-policy %s and may drop jobs: set it to noeviction, or allow eviction explicitly", address, s.MaxMemoryPolicy)
	}
	return nil
}
