package rubyqueue

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newer are commands that Redis 3.2 does not have: the old side must do without.
var newer = []string{"UNLINK", "ZPOPMIN", "ZPOPMAX", "XADD", "HELLO", "GETDEL", "GETEX", "ZRANGESTORE", "ZMSCORE", "COPY", "LMOVE",
	"SMISMEMBER", "ZUNION", "ZINTER", "ZDIFF", "EVAL_RO", "EVALSHA_RO", "FCALL", "HRANDFIELD", "ZRANDMEMBER", "LPOS"}

// oldRedis is the old Redis that is asked for, or else one without the commands that are newer than Ruby's Lowkiq asks for.
func oldRedis(t testing.TB) *redistest.Server {
	if os.Getenv(redistest.OldEnv) != "" {
		return redistest.StartOld(t)
	}
	var args []string
	for _, name := range newer {
		args = append(args, "--rename-command", name, "")
	}
	return redistest.Start(t, args...)
}

func open(t testing.TB, url, name string, shards int) *Queue {
	t.Helper()
	q, err := Open(Config{URL: url, Timeout: 20 * time.Second, Name: name, Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

// load empties the database and brings a state into it.
func load(t testing.TB, q *Queue, s *rubystates.State) {
	t.Helper()
	commands, err := s.Commands()
	if err != nil {
		t.Fatal(err)
	}
	pipe := q.db.ForTests().Pipeline()
	pipe.FlushAll(t.Context())
	for _, c := range commands {
		pipe.Do(t.Context(), c...)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
}

// shardText is an id's shard as it stands in keys.
func shardText(id string, shards int) string { return strconv.Itoa(ShardOf(id, shards)) }
