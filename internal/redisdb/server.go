package redisdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Server is one Redis server.
type Server struct {
	Address string
	// Fields of the command INFO. A proxy or an emulation leaves most of them out.
	Fields map[string]string
}

// The oldest Redis whose commands the scripts use: LPOP with a count came with 6.2.
const minMajor, minMinor = 6, 2

// Info asks every master what it says of itself. It fails if one of them says nothing.
func (db *DB) Info(ctx context.Context) ([]Server, error) {
	var mu sync.Mutex // guards all: a cluster's masters are asked at once
	var all []Server
	err := db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		if err := master.rdb.Ping(ctx).Err(); err != nil {
			return db.Explain("read what redis says of itself", err)
		}
		one := Server{master.address, master.info(ctx, "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace")}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	slices.SortFunc(all, func(x, y Server) int { return cmp.Compare(x.Address, y.Address) })
	return all, err
}

// info reads sections of INFO one by one: an emulation may know some of them only.
func (db *DB) info(ctx context.Context, sections ...string) map[string]string {
	fields := map[string]string{}
	for _, section := range sections {
		text, _ := db.rdb.Info(ctx, section).Result() //nolint:errcheck // it is not known
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[key] = value
			}
		}
	}
	return fields
}

// Check connects, reads what the server is and sends it the scripts. It fails when
// Redis is out of reach, too old, may evict jobs at will, or does not permit what the
// client does. Of a cluster every master is asked, of Sentinel the master and every sentinel
// that answers; one of the masters is returned.
func (db *DB) Check(ctx context.Context, allowEviction bool) (server Server, err error) {
	if err := db.rdb.Ping(ctx).Err(); err != nil {
		return server, db.refusedToConnect(ctx, err)
	}
	var mu sync.Mutex // guards server: a cluster's masters are asked at once
	err = db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		one := Server{master.address, master.info(ctx, "server", "memory", "persistence")}
		mu.Lock()
		defer mu.Unlock()
		server = one
		return one.refuse(db.address, allowEviction)
	})
	if err != nil {
		return server, err
	}
	if err := db.checkPermissions(ctx); err != nil {
		return server, err
	}
	return server, db.Load(ctx)
}

// refuse says why jobs must not be kept there.
func (s Server) refuse(address string, allowEviction bool) error {
	version, policy := s.Fields["redis_version"], s.Fields["maxmemory_policy"]
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (x < minMajor || x == minMajor && y < minMinor) {
		return fmt.Errorf("redis %s is version %s: want %d.%d or later", address, version, minMajor, minMinor)
	}
	if policy != "" && policy != "noeviction" && !allowEviction {
		return fmt.Errorf("redis %s has maxmemory-policy %s and may drop jobs: set it to noeviction, or allow eviction explicitly", address, policy)
	}
	return nil
}
