package protocol_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// clusterWords returns the permissions that every user of a Redis Cluster needs in addition.
func clusterWords(t *testing.T) []string {
	t.Helper()
	return documented(t, "redis-cli ACL SETUSER USER ")
}

// withLogin returns the URL of a user that setUsers created.
func withLogin(url, user string) string {
	return strings.Replace(url, "://", "://"+user+":PASSWORD@", 1)
}

// setUsers creates the user on each of the servers.
func setUsers(t *testing.T, servers []*redistest.Server, user string, rule ...string) {
	t.Helper()
	for _, s := range servers {
		setUser(t, s, user, rule...)
	}
}

// clusterUser creates the user of the documents and returns its URL.
func clusterUser(t *testing.T, c *redistest.Cluster, user string, more ...string) string {
	t.Helper()
	setUsers(t, c.Masters, user, slices.Concat(aclRule(t, user), clusterWords(t), more)...)
	return withLogin(c.URL(), user)
}

// TestACLCluster calls the scripts of queues as the user of docs/security.md on a Redis Cluster.
func TestACLCluster(t *testing.T) {
	tier.All(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	t.Run("check names what one master refuses", func(t *testing.T) {
		t.Parallel()
		eachWordMissing(t, cluster.Masters, withLogin(cluster.URL(), "partial"), "partial", slices.Concat(aclRule(t, "lowkiq"), clusterWords(t)))
	})
	t.Run("producer", func(t *testing.T) {
		t.Parallel()
		owner := newRig(t, &backend{url: cluster.URL()}, func(c *Config) { c.Cluster = "producing" }) // the suite has its names
		producer := &backend{url: clusterUser(t, cluster, "producer")}
		tryProducer(t, producer, owner)
		setUsers(t, cluster.Masters, "caller", slices.Concat(aclRule(t, "producer"), clusterWords(t), callerWords(t))...)
		tryCalls(t, &backend{url: withLogin(cluster.URL(), "caller")}, producer, owner)
	})
	runFew(t, &backend{url: clusterUser(t, cluster, "lowkiq", ofTests()...)}, "pop_each", "push_each") // its shards share no slot
}

// eachWordMissing leaves out one permission after the other on one of the servers. The check must name the
// permission and the server.
func eachWordMissing(t *testing.T, servers []*redistest.Server, url, user string, rule []string) {
	t.Helper()
	setUsers(t, servers, user, rule...)
	if err := checkOf(t, url); err != nil {
		t.Fatalf("with the whole rule: %v", err)
	}
	// TestCheckNamesMissingPermissions tries every word on a single Redis.
	for i := rand.IntN(4); i < len(rule); i += 4 {
		word := rule[i]
		if !strings.ContainsAny(word[:1], "+~&") {
			continue
		}
		server := servers[i%len(servers)]
		setUser(t, server, user, slices.Concat(rule[:i], rule[i+1:])...)
		err := checkOf(t, url)
		switch {
		case err == nil || !slices.Contains(strings.Fields(err.Error()), word):
			t.Errorf("without %s: got %v, want it named", word, err)
		case len(servers) > 1 && !strings.Contains(err.Error(), server.Addr()):
			t.Errorf("without %s: got %v, want %s named", word, err, server.Addr())
		case Transient(err):
			t.Errorf("without %s: %v is transient, want final", word, err)
		}
		setUser(t, server, user, rule...)
	}
}

// checkOf returns the error of the check at the start.
func checkOf(t *testing.T, url string) error {
	t.Helper()
	c, err := Open(Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Check(t.Context(), false)
	return err
}
