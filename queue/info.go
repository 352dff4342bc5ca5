package queue

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ServerInfo is what one Redis server says of itself.
type ServerInfo struct {
	Address string
	Fields  map[string]string // of the command INFO; an emulation leaves most of them out
}

// infoSections are those that are asked for, one by one: an emulation may know some only.
var infoSections = []string{"server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace"}

// Info asks every master what it says of itself. It fails if one of them says nothing.
func (c *Client) Info(ctx context.Context) ([]ServerInfo, error) {
	var mu sync.Mutex // guards all: a cluster's masters are asked at once
	var all []ServerInfo
	err := c.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		one := ServerInfo{Address: c.addressOf(node), Fields: map[string]string{}}
		if err := node.Ping(ctx).Err(); err != nil {
			return c.explain("read what redis says of itself", err)
		}
		for _, section := range infoSections {
			if text, err := node.Info(ctx, section).Result(); err == nil {
				readInfo(text, one.Fields)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	slices.SortFunc(all, func(x, y ServerInfo) int { return cmp.Compare(x.Address, y.Address) })
	return all, err
}

func readInfo(text string, into map[string]string) {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			into[key] = value
		}
	}
}
