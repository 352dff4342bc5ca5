package protocol_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/audit"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// The tests of the audit damage Redis by hand, so they are no part of the suite.

// audits returns all tests of the audit.
func audits() []testCase { return slices.Concat(auditTests, repairTests) }

// audited returns the tests that may depend on the kind of Redis: how keys are found and scripts called.
func audited() []testCase {
	return slices.DeleteFunc(audits(), func(c testCase) bool {
		return !slices.Contains([]string{"Audit_Clean", "Audit_Cluster", "Audit_Orphans", "Repair_Faults"}, c.name)
	})
}

func TestAudit(t *testing.T) {
	t.Parallel()
	runCases(t, &backend{url: redistest.Start(t).URL()}, tier.Of(audited(), audited(), audits()))
}

func TestAuditOfCluster(t *testing.T) {
	tier.All(t)
	t.Parallel()
	runCases(t, &backend{url: clusterUser(t, redistest.StartCluster(t, 3), "lowkiq", ofTests()...)}, audits())
}

func TestAuditOfEmbedded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	runCases(t, &backend{url: redistest.StartMini(t).URL(), mini: true}, audits())
}

// TestAuditUnderACL checks that the rule of docs/security.md permits an audit and a repair.
func TestAuditUnderACL(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server := redistest.Start(t)
	anybody := &backend{url: server.URL()}
	user := &backend{url: setUser(t, server, "lowkiq", aclRule(t, "lowkiq")...)}
	for _, one := range corruptions() {
		r := corrupted(t, anybody, one)
		r.c = user.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
		found := r.audit(func(cfg *audit.Config) { cfg.Orphans = true })
		if len(found.Faults) != 1 {
			t.Errorf("%s: got %d faults, want 1:\n%s", one.name, len(found.Faults), linesOf(found))
		}
		if left := r.mend(); one.left != (len(left.Faults) > 0) {
			t.Errorf("%s: after the repair:\n%s", one.name, linesOf(left))
		}
	}
}

// TestAuditReadsTheRegistryOnce checks that an audit reads the registry once for any number of queues, because its text
// grows with them.
func TestAuditReadsTheRegistryOnce(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	c := b.open(t)
	const queues = 20
	for i := range queues {
		if _, err := c.Register(t.Context(), lowkiq.Queue{Name: fmt.Sprint("q", i), Shards: 1}); err != nil {
			t.Fatal(err)
		}
	}
	fresh := b.open(t, func(cfg *Config) { cfg.Cluster = c.Cluster() })
	rdb := c.DB().ForTests()
	if err := rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Run(t.Context(), fresh, audit.Config{})
	if err != nil || report.Queues != queues {
		t.Fatalf("got %d queues, %v, want %d", report.Queues, err, queues)
	}
	stats := rdb.Info(t.Context(), "commandstats").Val()
	_, of, _ := strings.Cut(stats, "cmdstat_hgetall:calls=")
	var calls int
	if _, err := fmt.Sscanf(of, "%d", &calls); err != nil || calls > queues+5 { // the registry, the index, the rules, what recurs (two), and each claim
		t.Errorf("got %d HGETALL (%v), want %d", calls, err, queues+5)
	}
}
