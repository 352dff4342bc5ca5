package redisdb

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Server is a Redis server.
type Server struct {
	Address string
	// Fields has the fields of INFO. A proxy or an emulation leaves most of them out.
	Fields map[string]string
}

// The oldest supported Redis. Scripts use LPOP with a count, which came with 6.2.
const minMajor, minMinor = 6, 2

// Info returns INFO of every master. It fails if a master does not answer.
func (db *DB) Info(ctx context.Context) ([]Server, error) {
	var mu sync.Mutex // guards all; a cluster's masters are asked concurrently
	var all []Server
	err := db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		if err := master.rdb.Ping(ctx).Err(); err != nil {
			return db.Explain("read INFO of redis", err)
		}
		one := Server{master.address, master.readInfo(ctx, "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace")}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	slices.SortFunc(all, func(x, y Server) int { return cmp.Compare(x.Address, y.Address) })
	return all, err
}

// Memory is what a master says about its memory.
type Memory struct {
	Address   string
	Policy    string // maxmemory-policy; "" if unknown
	Used, Max int64  // bytes that count for the limit, and the limit; 0 if unknown or unlimited
}

// MayEvict reports whether Redis may drop jobs when it is full.
func (m Memory) MayEvict() bool { return mayEvict(m.Policy) }

// Full reports whether Redis refuses what needs memory.
func (m Memory) Full() bool { return m.Max > 0 && m.Used >= m.Max && !m.MayEvict() }

// Memory asks every master about its memory.
func (db *DB) Memory(ctx context.Context) (all []Memory, err error) {
	var mu sync.Mutex // guards all; a cluster's masters are asked concurrently
	err = db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		text, err := master.rdb.Info(ctx, "memory").Result()
		if err != nil {
			return db.Explain("ask redis about its memory", err)
		}
		fields := fieldsOf(text)
		number := func(name string) int64 { n, _ := strconv.ParseInt(fields[name], 10, 64); return n }
		one := Memory{master.address, fields["maxmemory_policy"], number("used_memory") - number("mem_not_counted_for_evict"), number("maxmemory")}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	slices.SortFunc(all, func(x, y Memory) int { return cmp.Compare(x.Address, y.Address) })
	return all, err
}

// mayEvict reports whether a maxmemory-policy lets Redis drop jobs.
func mayEvict(policy string) bool { return policy != "" && policy != "noeviction" }

// fieldsOf parses the answer to INFO.
func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// readInfo reads each section of INFO by itself, because an emulation may know only some sections.
func (db *DB) readInfo(ctx context.Context, sections ...string) map[string]string {
	fields := map[string]string{}
	for _, section := range sections {
		text, _ := db.rdb.Info(ctx, section).Result() //nolint:errcheck // the section is unknown
		maps.Copy(fields, fieldsOf(text))
	}
	return fields
}

// Check connects, reads INFO and sends the scripts. It fails if Redis is out of reach, too old, may
// evict jobs, or does not permit what the client does. It checks every master of a cluster, and
// with Sentinel the master and every sentinel that answers. It returns the Server of any master.
func (db *DB) Check(ctx context.Context, allowEviction bool) (server Server, err error) {
	if err := db.rdb.Ping(ctx).Err(); err != nil {
		return server, db.refusedToConnect(ctx, err)
	}
	var mu sync.Mutex // guards server; a cluster's masters are asked concurrently
	err = db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		one := Server{master.address, master.readInfo(ctx, "server", "memory", "persistence")}
		mu.Lock()
		defer mu.Unlock()
		server = one
		return one.checkServer(db.address, allowEviction)
	})
	if err != nil {
		return server, err
	}
	if err := db.checkPermissions(ctx); err != nil {
		return server, err
	}
	return server, db.Load(ctx)
}

// checkServer returns an error if jobs must not be kept in the server.
func (s Server) checkServer(address string, allowEviction bool) error {
	version, policy := s.Fields["redis_version"], s.Fields["maxmemory_policy"]
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (x < minMajor || x == minMajor && y < minMinor) {
		return unfit("redis %s is version %s, lowkiq needs %d.%d or later", address, version, minMajor, minMinor)
	}
	if mayEvict(policy) && !allowEviction {
		return unfit("redis %s has maxmemory-policy %s and may drop jobs; set maxmemory-policy noeviction in its redis.conf (or CONFIG SET maxmemory-policy noeviction), "+
			"or accept the loss with node.allow_eviction", address, policy)
	}
	return nil
}
