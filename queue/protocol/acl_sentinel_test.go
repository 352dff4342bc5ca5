package protocol_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// sentinelRule returns the rule of docs/security.md for a user of the sentinels themselves.
func sentinelRule(t *testing.T) []string {
	t.Helper()
	return documented(t, "redis-cli -p 26379 ACL SETUSER lowkiq ")
}

// toSentinels adds the login for the sentinels to a URL.
func toSentinels(url, user string) string {
	return url + "?sentinel_user=" + user + "&sentinel_password=PASS%57ORD"
}

// sentinelUser creates the users of the documents and returns their URL.
func sentinelUser(t *testing.T, s *redistest.Sentinel, more ...string) string {
	t.Helper()
	setUsers(t, s.Data, "lowkiq", append(aclRule(t, "lowkiq"), more...)...)
	setUsers(t, s.Sentinels, "watcher", sentinelRule(t)...)
	return toSentinels(withLogin(s.URL(), "lowkiq"), "watcher")
}

// TestACLSentinel calls the scripts of queues as the users of docs/security.md, through sentinels.
func TestACLSentinel(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := redistest.StartSentinel(t)
	s.DownAfter(time.Minute)
	url := sentinelUser(t, s, ofTests()...)
	t.Run("check names what the master refuses", func(t *testing.T) {
		t.Parallel()
		eachWordMissing(t, s.Data[:1], toSentinels(withLogin(s.URL(), "partial"), "watcher"), "partial", aclRule(t, "lowkiq"))
	})
	t.Run("check names what one sentinel refuses", func(t *testing.T) {
		t.Parallel()
		eachWordMissing(t, s.Sentinels, toSentinels(withLogin(s.URL(), "lowkiq"), "partial"), "partial", sentinelRule(t))
	})
	t.Run("check names what all sentinels refuse", func(t *testing.T) {
		t.Parallel()
		rule := slices.DeleteFunc(sentinelRule(t), func(word string) bool { return word == "+sentinel|get-master-addr-by-name" })
		setUsers(t, s.Sentinels, "blind", rule...)
		err := checkOf(t, toSentinels(withLogin(s.URL(), "lowkiq"), "blind"))
		if err == nil || !strings.HasSuffix(err.Error(), "ACL rules: +sentinel|get-master-addr-by-name") {
			t.Errorf("got %v, want the word named", err)
		}
	})
	t.Run("a stranger to the sentinels", func(t *testing.T) {
		t.Parallel()
		err := checkOf(t, toSentinels(withLogin(s.URL(), "lowkiq"), "stranger"))
		if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || Transient(err) {
			t.Errorf("got %v, want WRONGPASS, not transient", err)
		}
	})
	t.Run("an unknown master", func(t *testing.T) { t.Parallel(); unknownMaster(t, s) })
	t.Run("producer", func(t *testing.T) {
		t.Parallel()
		setUsers(t, s.Data, "producer", aclRule(t, "producer")...)
		owner := newRig(t, &backend{url: s.URL()}, func(c *Config) { c.Cluster = "producing" }) // the suite has its names
		tryProducer(t, &backend{url: toSentinels(withLogin(s.URL(), "producer"), "watcher")}, owner)
	})
	runFew(t, &backend{url: url})
}

// unknownMaster: a master that no sentinel knows is an error, and is not taken for a Redis without keys.
// keys.
func unknownMaster(t *testing.T, s *redistest.Sentinel) {
	t.Helper()
	b := &backend{url: strings.Replace(s.URL(), "/mymaster", "/theirs", 1)}
	c := b.open(t, func(c *Config) { c.Timeout = 10 * time.Second })
	_, check := c.Check(t.Context(), false)
	record, load := c.Leases().Record().Load(t.Context())
	for _, err := range []error{check, load} {
		if err == nil || !strings.Contains(err.Error(), `knows a master "theirs"`) || !Transient(err) {
			t.Errorf("got %v, record %q, want an error that names the master, transient", err, record)
		}
	}
}

// TestInfoOfSentinel checks that Info names the sentinels' address, because go-redis does not know the address of the
// master.
func TestInfoOfSentinel(t *testing.T) {
	t.Parallel()
	c, err := Open(Config{Redis: "redis+sentinel://a,b/m"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eq(t, "address", c.Redis(), "a:26379,b:26379")
}
