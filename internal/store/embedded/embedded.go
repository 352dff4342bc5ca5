package embedded

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Server is a running embedded Redis. Its methods may be called by any goroutine.
type Server struct {
	redis *miniredis.Miniredis
	addr  string
}

// Start serves an empty Redis on a free port of 127.0.0.1.
func Start() (*Server, error) {
	redis := miniredis.NewMiniRedis()
	// Without this miniredis ignores TTLs, and a lease would never end.
	redis.ClockTTL(true)
	if err := redis.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("serve embedded redis on 127.0.0.1: %w", err)
	}
	return &Server{redis: redis, addr: redis.Addr()}, nil
}

// Addr returns host:port. It stays the same after Close.
func (s *Server) Addr() string { return s.addr }

// URL returns the address as a Redis URL, database 0.
func (s *Server) URL() string { return "redis://" + s.addr + "/0" }

// Close ends all connections and waits for their goroutines. It may be called twice.
func (s *Server) Close() { s.redis.Close() }
