package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// The audit's tests break Redis by hand, which is why they are no part of the suite.

// audits are all of them.
func audits() []testCase { return slices.Concat(auditTests, repairTests) }

// audited is what the kind of Redis could make differ: how keys are found and scripts called.
func audited() []testCase {
	return slices.DeleteFunc(audits(), func(c testCase) bool {
		return !slices.Contains([]string{"Audit_Clean", "Audit_Cluster", "Audit_Orphans", "Repair_Faults"}, c.name)
	})
}

func TestAudit(t *testing.T) {
	t.Parallel()
	runCases(t, &backend{url: redistest.Start(t).URL()}, tier.Of(audited(), audits(), audits()))
}

func TestAuditOfCluster(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	runCases(t, &backend{url: clusterUser(t, redistest.StartCluster(t, 3), "lowkiq", ofTests()...)}, tier.Of(nil, audited(), audits()))
}

func TestAuditOfEmbedded(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	runCases(t, &backend{url: redistest.StartMini(t).URL(), mini: true}, tier.Of(nil, audited(), audits()))
}

func TestHeadlines(t *testing.T) {
	t.Parallel()
	for record, want := range map[string]header{
		"":  {},
		"x": {form: 'x'},
		"a\x00\x00\x00\x00\x00\x01\x02\x00\x00payload": {form: 'a', retry: -1, at: 258, n: 1},
		"j3 17 2 6 4 3\nboom1 3:abc":                   {form: 'j', retry: 3, at: 17, n: 2},
		"s-1 17 40 110 0 41 0\n":                       {form: 's', retry: -1, at: 17, n: 40},
		"s-1 17 40 110 0 41\n":                         {form: '?'},
		"p-1 17 40 110 0 41\n":                         {form: 'p', retry: -1, at: 17, n: 40},
		"a\x00\x00":                                    {form: '?'},
		"hello":                                        {form: '?'},
		"j3 17 2 6 4\nboom":                            {form: '?'},
		"jx 17 2 6 4 3\n":                              {form: '?'},
	} {
		if got := headerOf(record); got != want {
			t.Errorf("%q: got %+v, want %+v", record, got, want)
		}
	}
}

// Replies of a sweep have about a megabyte, whatever records have.
func TestSweepNext(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		count int64
		flat  []string
		want  int64
	}{
		{10, nil, 40},
		{400, []string{"id", "small"}, 1000},
		{10, []string{"a", large, "b", large}, 4},
		{2, []string{"a", large, "b", large, "c", large}, 1},
		{1, []string{"a", large}, 1},
	} {
		if got := sweepNext(c.count, c.flat); got != c.want {
			t.Errorf("after %d asked for, %d got: got %d, want %d", c.count, len(c.flat)/2, got, c.want)
		}
	}
}

// A sweep's suspicion is decided without the ready list where that is possible: a long one
// takes long to look through.
func TestWeigh(t *testing.T) {
	t.Parallel()
	job := header{form: 'a', retry: -1, at: 5, n: 1}
	for _, c := range []struct {
		name        string
		t           idFacts
		sure, maybe string
	}{
		{"ready or nowhere", idFacts{record: job}, "[]", "[no-entry two-places]"},
		{"in flight", idFacts{record: job, flight: 1}, "[]", "[two-places two-places]"},
		{"in flight twice", idFacts{record: job, flight: 2}, "[two-places]", "[two-places two-places two-places]"},
		{"no record", idFacts{}, "[]", "[no-record no-record]"},
		{"no record and due", idFacts{due: place{in: true}}, "[no-record]", "[no-record no-record no-record]"},
		{"late", idFacts{record: job, due: place{in: true, at: 6}}, "[wrong-time]", "[wrong-time two-places wrong-time two-places wrong-time]"},
	} {
		sure, maybe := c.t.weigh()
		eq(t, c.name+": sure", fmt.Sprint(sure), c.sure)
		eq(t, c.name+": maybe", fmt.Sprint(maybe), c.maybe)
	}
}

// The rule of docs/security.md is enough to audit and to repair.
func TestAuditUnderACL(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	server := redistest.Start(t)
	anybody := &backend{url: server.URL()}
	user := &backend{url: setUser(t, server, "lowkiq", aclRule(t, "lowkiq")...)}
	for _, one := range corruptions() {
		r := corrupted(t, anybody, one)
		r.c = user.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
		found := r.audit(func(cfg *AuditConfig) { cfg.Orphans = true })
		if len(found.Faults) != 1 {
			t.Errorf("%s: got %d faults, want 1:\n%s", one.name, len(found.Faults), found.lines())
		}
		if left := r.mend(); one.left != (len(left.Faults) > 0) {
			t.Errorf("%s: after the repair:\n%s", one.name, left.lines())
		}
	}
}
