package protocol_test

import (
	"testing"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

func TestInfo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, err := Open(Config{Redis: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	all, err := c.Info(t.Context())
	if err != nil || len(all) != 1 || all[0].Address != server.Addr() {
		t.Fatalf("got %+v, %v, want one server at %s", all, err, server.Addr())
	}
	for _, field := range []string{"redis_version", "role", "used_memory_human", "aof_enabled", "instantaneous_ops_per_sec"} {
		if all[0].Fields[field] == "" {
			t.Errorf("got no %s", field)
		}
	}
	server.Kill()
	if all, err := c.Info(t.Context()); err == nil {
		t.Errorf("got %+v from a server that is away, want an error", all)
	}
}
