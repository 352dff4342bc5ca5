package protocol_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// backend is a Redis that the suite runs against, shared by all tests of one run.
type backend struct {
	url string
	// mini is true for the embedded Redis, which has no memory limit.
	mini bool
	// second is true if another Redis is the judge of right and wrong, so that an eighth of the random
	// histories suffices.
	second bool
	// shared makes each pop and ack use the script of many shards first, even if it comes alone. That
	// script takes less at once than a shard's own script, which some cases count.
	shared bool
	// names provides a cluster name for each test, so that tests cannot meet.
	names atomic.Int64
	// calls records which scripts are called, unless it is nil.
	calls *scriptCalls
}

// rdb is a Redis as go-redis sees it.
type rdb = redisdb.Client

// testCase is a test of the suite.
type testCase struct {
	name string
	run  func(t *testing.T, b *backend)
}

// suite returns the tests that must pass on every kind of Redis, with package queue/protocol, queue/lease and
// queue/browse.
func suite() []testCase {
	return slices.Concat(propertyTests, ruleTests, quarantineTests, pageTests, searchTests, placeTests, bulkTests, adminTests, protocolTests, commitTests, inputTests, listTests, wakeTests, positionTests, journalTests, timingTests, pushAgainTests, deletedTests, staleTests, lateTests, repeatTests, namedTests, leaseTests, damageTests, headerDamageTests, lagTests, removeTests, replyTests, callTests, memoryTests, deliveryTests, limitTests, groupTests, coalesceTests, eventTests, transferTests, importStateTests, crowdTests, urgentTests, layoutTests, followUpTests, workflowTests, freezeTests, followTests)
}

// long has cases whose many rounds test a script rather than the kind of Redis.
var long = []string{
	"Bulk", "BulkReachesAllGroups", "Late_ManyAtOnce", "ManyCrowdedIDs", "PagesOfACrowd", "PagesOfEachSize", "PagesWhileJobsMove",
	"PushAgain_KeepsOrder", "Rule_ScoresKeepTheirBits", "Stale_Many", "SearchInPieces", "SearchOfCrowds", "Rate_LargeAndSmallBatches", "Import_ACrowd",
}

// except returns the cases whose names are not listed.
func except(cases []testCase, names []string) []testCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return slices.Contains(names, c.name) })
}

// differing returns the cases that may depend on the kind of Redis or on the permissions of its user: which
// commands exist, which keys a script may name together, which messages are published, how scripts are
// loaded.
func differing() []testCase {
	return except(slices.Concat(protocolTests, commitTests, wakeTests, leaseTests, removeTests, repeatTests, listTests, searchTests, replyTests, callTests, deliveryTests, eventTests, transferTests, layoutTests, followUpTests, workflowTests, freezeTests, followTests), long)
}

// eachScript returns the cases of differing, and all others that call scripts, for the keys and commands of
// each script.
func eachScript() []testCase {
	return except(slices.Concat(differing(), propertyTests, pageTests, bulkTests, adminTests, journalTests, urgentTests), long)
}

// runCases runs tests side by side on one Redis. Protocol_NoScript runs before the others, because it makes Redis forget
// their scripts, and some count requests.
func runCases(t *testing.T, b *backend, cases []testCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "Protocol_NoScript" {
				t.Parallel()
			}
			c.run(t, b)
		})
	}
}

// TestSingle runs the suite on one Redis server, the judge of right and wrong.
func TestSingle(t *testing.T) {
	t.Parallel()
	runCases(t, &backend{url: redistest.Start(t).URL()}, tier.Of(except(suite(), long), except(suite(), long), suite()))
}

// TestCluster runs the suite on a Redis Cluster, which requires that all keys of a script are declared and
// in one slot.
func TestCluster(t *testing.T) {
	tier.All(t)
	t.Parallel()
	runCases(t, &backend{url: redistest.StartCluster(t, 3).URL(), second: true}, eachScript())
}

// TestEmbedded runs the suite on the Redis inside the process.
func TestEmbedded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, c := range except(suite(), long) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, &backend{url: redistest.StartMini(t).URL(), mini: true, second: true}) // its own: each key costs all commands
		})
	}
}

// open connects with a cluster name of its own.
func (b *backend) open(t testing.TB, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Redis: b.url, Cluster: b.name(), PoolSize: 16, Timeout: time.Minute} // on a machine that does much else, too
	for _, f := range change {
		f(&cfg)
	}
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if b.calls != nil {
		b.calls.listen(c.DB().ForTests())
	}
	if b.shared {
		c.ShareAlways()
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (b *backend) name() string { return fmt.Sprint("test-", b.names.Add(1)) }

// newQueue registers the queue "q".
func newQueue(t testing.TB, c *Client, shards int) *Queue {
	t.Helper()
	q, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return q
}
