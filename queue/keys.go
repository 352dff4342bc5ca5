package queue

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// All keys of a shard share one hash tag with the cluster's name, the queue's layout
// number and the shard's index in it: a script's keys are in one slot of a Redis
// Cluster, clusters cannot meet, and a later change of the shard count is a new layout
// instead of a rewrite of keys. No other file spells a Redis key.

// nameRule keeps the delimiters of keys out of names.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// CheckName says what is wrong with the name of a cluster, a queue or a node.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s name is empty", what)
	case len(name) > lowkiq.MaxQueueName:
		return fmt.Errorf("%s name is %d bytes long, at most %d are allowed", what, len(name), lowkiq.MaxQueueName)
	case !nameRule.MatchString(name):
		return fmt.Errorf("%s name %q: use letters, digits, '.', '_' and '-', beginning with a letter or digit", what, name)
	}
	return nil
}

// shardKeys are the names of a shard's keys.
type shardKeys struct {
	jobs, ready, due, retry, blocked string // where ids wait, and their records
	stale                            string // scheduled ids whose entries in ready are of deleted jobs
	late                             string // failed ids whose turn has come: in ready, or on probation
	claim, flight, parked            string // who owns the shard, what is being handled
	suspects, crashes                string // probation
	morgue, dead                     string // payloads out of retries
	count, spill, spillx             string // counters; payloads of crowded ids
	aside                            string // records that could not be read
	attempts                         string // the last ones that came to nothing
	wake                             string // channel that wakes the owner
}

func newShardKeys(cluster, queue string, layout, index int) shardKeys {
	tag := "lk:{" + cluster + "/" + queue + "/" + strconv.Itoa(layout) + "/" + strconv.Itoa(index) + "}:"
	return shardKeys{
		jobs: tag + "jobs", ready: tag + "ready", due: tag + "due", retry: tag + "retry", blocked: tag + "blocked", stale: tag + "stale",
		late:  tag + "late",
		claim: tag + "claim", flight: tag + "flight", parked: tag + "parked",
		suspects: tag + "suspects", crashes: tag + "crashes",
		morgue: tag + "morgue", dead: tag + "dead",
		count: tag + "count", spill: tag + "spill", spillx: tag + "spillx", aside: tag + "aside",
		attempts: tag + "attempts",
		wake:     tag + "wake",
	}
}

// The orders below are those of the scripts' headers.

func (k *shardKeys) forPush() []string {
	return []string{k.jobs, k.ready, k.count, k.due, k.flight, k.parked, k.stale, k.spill, k.spillx}
}

func (k *shardKeys) forPop() []string {
	return []string{k.claim, k.jobs, k.ready, k.due, k.flight, k.parked, k.crashes, k.count, k.retry, k.suspects, k.spill, k.spillx, k.stale, k.late}
}

func (k *shardKeys) forAside() []string {
	return []string{k.claim, k.jobs, k.ready, k.due, k.flight, k.parked, k.crashes, k.aside}
}

func (k *shardKeys) forRelease() []string {
	return []string{k.claim, k.jobs, k.ready, k.flight, k.parked, k.crashes, k.suspects, k.spill, k.spillx, k.late}
}

func (k *shardKeys) forClaim() []string {
	return append(k.forRelease(), k.morgue, k.dead, k.count, k.due, k.attempts)
}
func (k *shardKeys) forNack() []string {
	return append(k.forRelease(), k.due, k.retry, k.count, k.attempts)
}
func (k *shardKeys) forBury() []string { return append(k.forClaim(), k.blocked) }

func (k *shardKeys) forWaiting() []string {
	return []string{k.jobs, k.ready, k.due, k.retry, k.blocked, k.flight, k.parked, k.crashes, k.suspects, k.count, k.spill, k.spillx, k.stale, k.late}
}

func (k *shardKeys) forMorgue() []string { return append(k.forWaiting(), k.morgue, k.dead) }

func (k *shardKeys) forForget() []string {
	return []string{k.morgue, k.dead, k.count, k.spill, k.spillx}
}

func (k *shardKeys) forStats() []string {
	return []string{k.jobs, k.ready, k.due, k.retry, k.blocked, k.flight, k.suspects, k.count, k.dead, k.claim, k.stale, k.parked, k.late}
}

func (k *shardKeys) forShow() []string {
	return []string{k.jobs, k.due, k.retry, k.blocked, k.flight, k.parked, k.claim, k.spill, k.spillx, k.morgue}
}

func (k *shardKeys) forRemove() []string {
	return []string{k.claim, k.count, k.jobs, k.ready, k.due, k.retry, k.blocked, k.stale, k.flight, k.parked, k.suspects, k.crashes,
		k.morgue, k.dead, k.spill, k.spillx, k.aside, k.attempts, k.late}
}

func clusterKey(cluster, name string) string { return "lk:{" + cluster + "}:" + name }

// clusterNames are the names that clusterKey is called with; those that end in a colon are
// followed by a node or an instance.
var clusterNames = []string{"queues", "instances", "record", "leader", "probe", "lease:", "name:", "timings:"}

// probeKey is the n-th of the keys that permissions are tried on. All but the first lie in
// other slots of a Redis Cluster than the cluster's own keys.
func probeKey(cluster string, n int) string {
	if n == 0 {
		return clusterKey(cluster, "probe")
	}
	return "lk:{" + cluster + "/" + strconv.Itoa(n) + "}:probe"
}

// probeKeyRule finds those of [probeKey].
var probeKeyRule = regexp.MustCompile(`^lk:\{[^/{}]+/\d+\}:probe$`)

// types maps each key of a shard to the type that it has in Redis.
func (k *shardKeys) types() map[string]string {
	types := map[string]string{}
	for kind, keys := range map[string][]string{
		"hash": {k.jobs, k.claim, k.parked, k.crashes, k.morgue, k.count, k.spillx, k.aside, k.stale, k.late},
		"list": {k.ready, k.flight, k.suspects, k.attempts},
		"zset": {k.due, k.retry, k.blocked, k.dead, k.spill},
	} {
		for _, key := range keys {
			types[key] = kind
		}
	}
	return types
}

func (k *shardKeys) forRepair() []string { return append(k.forMorgue(), k.aside) }

func (k *shardKeys) forSpill() []string {
	return []string{k.jobs, k.parked, k.morgue, k.spill, k.spillx}
}

// keyPatterns find all keys of a cluster; no name holds a character that SCAN reads otherwise.
func keyPatterns(cluster string) []string {
	return []string{"lk:{" + cluster + "}:*", "lk:{" + cluster + "/*"}
}

// shardKeyRule takes the key of a shard apart: queue, layout, index, name.
var shardKeyRule = regexp.MustCompile(`^lk:\{[^/{}]+/([^/{}]+)/(\d+)/(\d+)\}:([a-z]+)$`)

func (c *Client) timingsKey(instance string) string {
	return clusterKey(c.cfg.Cluster, "timings:"+instance)
}
