package redisdb

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// All keys of a shard share one hash tag. It has the cluster's name, the queue's name and layout
// number, the shard's index, and letters that choose the slot (slots.go). So the keys of a script
// are in one slot of a Redis Cluster, and clusters cannot meet. A later change of the shard count
// will be a new layout and will not rewrite keys. No other Go file spells a Redis key.

// Keys spells the keys and channels of a cluster.
type Keys struct{ cluster string }

func (k Keys) clusterKey(name string) string { return "lk:{" + k.cluster + "}:" + name }

// Queues is the registry, a hash of entries by queue.
func (k Keys) Queues() string { return k.clusterKey("queues") }

// Instances is the index of instances, a hash of identities.
func (k Keys) Instances() string { return k.clusterKey("instances") }

// Record is the cluster record.
func (k Keys) Record() string { return k.clusterKey("record") }

// Leader is the mark of the leader.
func (k Keys) Leader() string { return k.clusterKey("leader") }

// Lease is the lease of an instance.
func (k Keys) Lease(instance string) string { return k.clusterKey("lease:" + instance) }

// Name is the reservation of a node's name.
func (k Keys) Name(node string) string { return k.clusterKey("name:" + node) }

// Timings has the timings of an instance in the last minute.
func (k Keys) Timings(instance string) string { return k.clusterKey("timings:" + instance) }

// To is the channel of messages to an instance.
func (k Keys) To(instance string) string { return k.clusterKey("to:" + instance) }

// Answer is a channel that the client has chosen for answers.
func (k Keys) Answer(name string) string { return k.clusterKey("answer:" + name) }

// Replies is the channel on which a client receives the replies to its calls.
func (k Keys) Replies(client string) string { return k.clusterKey("replies:" + client) }

// Recurring has the recurring entries, a hash by name, and their revision.
func (k Keys) Recurring() string { return k.clusterKey("recurring") }

// Ticks has the next tick of each entry, a sorted set of names by us.
func (k Keys) Ticks() string { return k.clusterKey("ticks") }

// Ticked has the last tick of each entry, a hash by name.
func (k Keys) Ticked() string { return k.clusterKey("ticked") }

// Rules has the rules of queues that were set at run time, a hash by queue, and the number of all
// changes.
func (k Keys) Rules() string { return k.clusterKey("rules") }

// Changes is the stream of changes.
func (k Keys) Changes() string { return k.clusterKey("changes") }

// Listen exists while somebody listens to the events of a queue, or of all queues if queue is "".
// Without it nodes publish no events, so a cluster without listeners pays nothing for them. Events is
// the channel of these events.
func (k Keys) Listen(queue string) string { return k.clusterKey("listen:" + queue) }
func (k Keys) Events(queue string) string { return k.clusterKey("events:" + queue) }

// Permits has the number of concurrent calls of a queue that each instance may make, a hash by
// instance. Permitsx has the instances that need more, a sorted set.
func (k Keys) Permits(queue string) string  { return k.clusterKey("permits:" + queue) }
func (k Keys) Permitsx(queue string) string { return k.clusterKey("permitsx:" + queue) }

// Rate counts how many ids of a queue were handed out recently.
func (k Keys) Rate(queue string) string { return k.clusterKey("rate:" + queue) }

// Groups has the permits of a queue's groups, a hash by group and by instance. Groupsx has the time
// when each entry is to be checked, a sorted set.
func (k Keys) Groups(queue string) string  { return k.clusterKey("groups:" + queue) }
func (k Keys) Groupsx(queue string) string { return k.clusterKey("groupsx:" + queue) }

// Leases is the beginning of the keys of leases, without a colon.
func (k Keys) Leases() string { return k.clusterKey("lease") }

// DaysKept is how many days the figures of a day are kept.
const DaysKept = 92

// HoursKept is how many hours the figures of an hour are kept.
const HoursKept = 48

// The time layouts of days and hours.
const (
	Days  = "2006-01-02"
	Hours = "2006-01-02T15"
)

// PeriodKept returns how long the figures of a period are kept after the last write.
func PeriodKept(period string) time.Duration {
	if len(period) == len(Hours) {
		return (HoursKept + 1) * time.Hour
	}
	return DaysKept * 24 * time.Hour
}

// Day has the figures of a queue for a day or an hour, a hash by the name of the count.
func (k Keys) Day(queue, period string) string { return k.clusterKey("day:" + queue + ":" + period) }

// Periods returns the last n days or hours, the newest first.
func Periods(span string, now time.Time, n int) (all []string) {
	for ago := range n {
		at := now.UTC().AddDate(0, 0, -ago)
		if span == Hours {
			at = now.UTC().Add(-time.Duration(ago) * time.Hour)
		}
		all = append(all, at.Format(span))
	}
	return all
}

// Days returns the keys of a queue's days and hours that may exist at a time.
func (k Keys) Days(queue string, now time.Time) (all []string) {
	for _, period := range append(Periods(Days, now.AddDate(0, 0, 1), DaysKept+3), Periods(Hours, now.Add(time.Hour), HoursKept+4)...) {
		all = append(all, k.Day(queue, period))
	}
	return all
}

// names lists the names of the keys above. A name that ends with a colon is followed by a node, an
// instance or a queue.
var names = []string{"queues", "instances", "record", "leader", "probe", "recurring", "ticks", "ticked", "rules", "changes", "lease:", "name:", "timings:", "permits:", "permitsx:", "rate:", "groups:", "groupsx:", "day:", "listen:"}

// probeKey returns the n-th key on which to try permissions. In a Redis Cluster, all but the first
// are in other slots than the cluster's own keys.
func (k Keys) probeKey(n int) string {
	if n == 0 {
		return k.clusterKey("probe")
	}
	return "lk:{" + k.cluster + "/" + strconv.Itoa(n) + "}:probe"
}

// probeRule matches the keys of probeKey except the first.
var probeRule = regexp.MustCompile(`^lk:\{[^/{}]+/\d+\}:probe$`)

// Patterns returns patterns for SCAN that match all keys of the cluster. Names have no characters
// with a special meaning in patterns.
func (k Keys) Patterns() []string {
	return []string{k.clusterKey("*"), "lk:{" + k.cluster + "/*"}
}

// Shared reports whether a key belongs to the cluster and not to a shard.
func (k Keys) Shared(key string) bool {
	name, ok := strings.CutPrefix(key, k.clusterKey(""))
	return !ok && probeRule.MatchString(key) || ok && slices.ContainsFunc(names, func(known string) bool {
		return name == known || strings.HasSuffix(known, ":") && strings.HasPrefix(name, known)
	})
}

var shardRule = regexp.MustCompile(`^lk:\{[^/{}]+/([^/{}]+)/(\d+)/(\d+)/[a-zA-Z]+\}:([a-z]+)(?::[\w-]+)?$`)

// ParseShard parses the key of a shard.
func ParseShard(key string) (queue string, layout, index int, name string, ok bool) {
	parts := shardRule.FindStringSubmatch(key)
	if parts == nil {
		return "", 0, 0, "", false
	}
	layout, _ = strconv.Atoi(parts[2])
	index, _ = strconv.Atoi(parts[3])
	return parts[1], layout, index, parts[4], true
}

// Pattern shows people what the keys of a queue look like. L stands for its layout.
func (k Keys) Pattern(queue string) string { return "lk:{" + k.cluster + "/" + queue + "/L/0/*}:*" }

// ShardKeys has the names of a shard's keys.
type ShardKeys struct {
	Tag string // beginning of all keys

	Jobs, Ready, Due, Retry, Blocked string // the records of ids, and the lists where ids wait
	Stale                            string // ids that wait elsewhere and have an entry in ready
	Urgent                           string // urgent ids
	Late                             string // failed ids in ready or in quarantine
	Postponed                        string // since when postponed ids wait
	Claim, Flight, Parked            string // the owner, ids in flight, payloads pushed during a flight
	Suspects, Crashes                string // quarantine
	Morgue, Dead                     string // buried payloads
	Count, Spill, Spillx             string // counters; payloads of crowded ids
	Aside                            string // unreadable records
	Journal, Journalx                string // the journal, see internal/store/journal; the list for trimming it
	States, Statesx                  string // states that handlers keep for ids, and when they were written
	Since                            string // the first push of each id that later pushes delay
	Progress                         string // progress of ids in flight
	From                             string // number of the last delivery by source
	Reply                            string // beginning of the keys of replies to calls, see ReplyTo
	Wake                             string // channel that wakes the owner
}

// Shard returns the keys of a shard.
func (k Keys) Shard(queue string, layout, index int) ShardKeys {
	tag := "lk:{" + shardTag(k.cluster+"/"+queue+"/"+strconv.Itoa(layout), index) + "}:"
	return ShardKeys{
		Tag:  tag,
		Jobs: tag + "jobs", Ready: tag + "ready", Due: tag + "due", Retry: tag + "retry", Blocked: tag + "blocked", Stale: tag + "stale", Urgent: tag + "urgent",
		Late: tag + "late", Postponed: tag + "postponed",
		Claim: tag + "claim", Flight: tag + "flight", Parked: tag + "parked",
		Suspects: tag + "suspects", Crashes: tag + "crashes",
		Morgue: tag + "morgue", Dead: tag + "dead",
		Count: tag + "count", Spill: tag + "spill", Spillx: tag + "spillx", Aside: tag + "aside",
		Journal: tag + "journal", Journalx: tag + "journalx",
		States: tag + "states", Statesx: tag + "statesx", Reply: tag + "reply",
		Progress: tag + "progress", Since: tag + "since", From: tag + "from",
		Wake: tag + "wake",
	}
}

// ReplyTo returns the key of the reply to a call.
func (k *ShardKeys) ReplyTo(token string) string { return k.Reply + ":" + token }

// For returns the keys of a script in the order of its head. It panics if the script has keys that
// do not belong to a shard.
func (k *ShardKeys) For(script *Script) []string {
	if !script.ofShard {
		panic("redisdb: script " + script.Name + " has keys that are not a shard's")
	}
	keys := make([]string, len(script.keys))
	for i, name := range script.keys {
		keys[i] = k.Tag + name
	}
	return keys
}

// Types maps each key of a shard to the type that it has in Redis.
func (k *ShardKeys) Types() map[string]string {
	types := map[string]string{}
	for kind, keys := range map[string][]string{
		"hash":   {k.Jobs, k.Claim, k.Parked, k.Crashes, k.Morgue, k.Count, k.Spillx, k.Aside, k.Stale, k.Late, k.States, k.Progress, k.From},
		"list":   {k.Ready, k.Flight, k.Suspects, k.Journalx},
		"stream": {k.Journal},
		"zset":   {k.Due, k.Retry, k.Blocked, k.Dead, k.Spill, k.Statesx, k.Since, k.Postponed, k.Urgent},
	} {
		for _, key := range keys {
			types[key] = kind
		}
	}
	return types
}
