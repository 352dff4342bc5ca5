package redistest

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	list, ok := strings.CutPrefix(s.URL(), "redis+sentinel://")
	list, name, _ := strings.Cut(list, "/")
	if !ok || name != masterName {
		t.Fatalf("URL: got %s", s.URL())
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: name, SentinelAddrs: strings.Split(list, ",")})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(t.Context(), "k", "before", 0).Err(); err != nil {
		t.Fatal(err)
	}
	dead := s.KillMaster()
	if dead != s.Data[0] {
		t.Errorf("killed %v, want the first master %v", dead.Addr(), s.Data[0].Addr())
	}
	eventually(t, "the replica takes writes", func() bool {
		return client.Set(t.Context(), "k", "after", 0).Err() == nil
	})
	eventually(t, "sentinels name the replica", func() bool { return s.Master() == s.Data[1] })
}

func TestMiniAnswers(t *testing.T) {
	t.Parallel()
	m := StartMini(t)
	if err := client(t, m.Addr()).Ping(t.Context()).Err(); err != nil {
		t.Errorf("ping: %v", err)
	}
}
