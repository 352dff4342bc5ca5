package redisdb

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// All keys of a shard share one hash tag with the cluster's name, the queue's layout
// number and the shard's index in it, and its place (place.go): a script's keys are in one slot of a Redis
// Cluster, clusters cannot meet, and a later change of the shard count is a new layout
// instead of a rewrite of keys. No other Go file spells a Redis key.

// Keys spells the keys and channels of one cluster.
type Keys struct{ cluster string }

func (k Keys) of(name string) string { return "lk:{" + k.cluster + "}:" + name }

// Queues is the registry: a hash of entries by queue.
func (k Keys) Queues() string { return k.of("queues") }

// Instances is the index of instances: a hash of identities.
func (k Keys) Instances() string { return k.of("instances") }

// Record is the cluster record.
func (k Keys) Record() string { return k.of("record") }

// Leader is the mark of the leader.
func (k Keys) Leader() string { return k.of("leader") }

// Lease is that of an instance.
func (k Keys) Lease(instance string) string { return k.of("lease:" + instance) }

// Name is the reservation of a node's name.
func (k Keys) Name(node string) string { return k.of("name:" + node) }

// Timings are what an instance has published of the last minute.
func (k Keys) Timings(instance string) string { return k.of("timings:" + instance) }

// To is the channel of messages to an instance.
func (k Keys) To(instance string) string { return k.of("to:" + instance) }

// Answer is a channel that the asking client has chosen.
func (k Keys) Answer(name string) string { return k.of("answer:" + name) }

// Replies is the channel on which a client hears how its calls end.
func (k Keys) Replies(client string) string { return k.of("replies:" + client) }

// Recurring are the entries of what recurs: a hash by name, and its revision.
func (k Keys) Recurring() string { return k.of("recurring") }

// Ticks are when each of them is due next: a sorted set of names, by us.
func (k Keys) Ticks() string { return k.of("ticks") }

// Ticked is what is kept of their last ticks: a hash by name.
func (k Keys) Ticked() string { return k.of("ticked") }

// Rules are what is changed of queues' rules at run time: a hash by queue, and a count of all changes.
func (k Keys) Rules() string { return k.of("rules") }

// Changes is the stream of what people have changed.
func (k Keys) Changes() string { return k.of("changes") }

// Listen is there while somebody listens to what happens in a queue, "" for all of them; Events is the channel on which
// nodes tell of it.
func (k Keys) Listen(queue string) string { return k.of("listen:" + queue) }
func (k Keys) Events(queue string) string { return k.of("events:" + queue) }

// Permits are how many calls of a queue each instance may have: a hash by instance. Permitsx are those that want more, a sorted set.
func (k Keys) Permits(queue string) string  { return k.of("permits:" + queue) }
func (k Keys) Permitsx(queue string) string { return k.of("permitsx:" + queue) }

// Rate is how much of a queue was handed out of late.
func (k Keys) Rate(queue string) string { return k.of("rate:" + queue) }

// Groups are the limits of a queue's groups: a hash by group and by instance. Groupsx is when to look at which, a sorted set.
func (k Keys) Groups(queue string) string  { return k.of("groups:" + queue) }
func (k Keys) Groupsx(queue string) string { return k.of("groupsx:" + queue) }

// Leases is what the keys of leases begin with, all but a colon.
func (k Keys) Leases() string { return k.of("lease") }

// DaysKept is for how many days the figures of a day are kept.
const DaysKept = 92

// HoursKept is for how many hours those of an hour are.
const HoursKept = 48

// Days and hours are how a period is written.
const (
	Days  = "2006-01-02"
	Hours = "2006-01-02T15"
)

// PeriodKept is for how long the figures of a period are kept after they were written last.
func PeriodKept(period string) time.Duration {
	if len(period) == len(Hours) {
		return (HoursKept + 1) * time.Hour
	}
	return DaysKept * 24 * time.Hour
}

// Day are the figures of a queue and a day or an hour: a hash by those who have counted them.
func (k Keys) Day(queue, period string) string { return k.of("day:" + queue + ":" + period) }

// Periods are the last days or hours, the newest first.
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

// Days are the keys of a queue's days and hours that may be there at a time.
func (k Keys) Days(queue string, now time.Time) (all []string) {
	for _, period := range append(Periods(Days, now.AddDate(0, 0, 1), DaysKept+3), Periods(Hours, now.Add(time.Hour), HoursKept+4)...) {
		all = append(all, k.Day(queue, period))
	}
	return all
}

// names are those of the keys above; those that end in a colon are followed by a node, an
// instance or a queue.
var names = []string{"queues", "instances", "record", "leader", "probe", "recurring", "ticks", "ticked", "rules", "changes", "lease:", "name:", "timings:", "permits:", "permitsx:", "rate:", "groups:", "groupsx:", "day:", "listen:"}

// probe is the n-th of the keys that permissions are tried on. All but the first lie in
// other slots of a Redis Cluster than the cluster's own keys.
func (k Keys) probe(n int) string {
	if n == 0 {
		return k.of("probe")
	}
	return "lk:{" + k.cluster + "/" + strconv.Itoa(n) + "}:probe"
}

// probeRule finds those of probe.
var probeRule = regexp.MustCompile(`^lk:\{[^/{}]+/\d+\}:probe$`)

// Patterns find all keys of the cluster; no name holds a character that SCAN reads otherwise.
func (k Keys) Patterns() []string {
	return []string{k.of("*"), "lk:{" + k.cluster + "/*"}
}

// Shared reports whether a key is one of those that belong to no shard.
func (k Keys) Shared(key string) bool {
	name, ok := strings.CutPrefix(key, k.of(""))
	return !ok && probeRule.MatchString(key) || ok && slices.ContainsFunc(names, func(known string) bool {
		return name == known || strings.HasSuffix(known, ":") && strings.HasPrefix(name, known)
	})
}

var shardRule = regexp.MustCompile(`^lk:\{[^/{}]+/([^/{}]+)/(\d+)/(\d+)/[a-zA-Z]+\}:([a-z]+)(?::[\w-]+)?$`)

// ParseShard takes the key of a shard apart.
func ParseShard(key string) (queue string, layout, index int, name string, ok bool) {
	parts := shardRule.FindStringSubmatch(key)
	if parts == nil {
		return "", 0, 0, "", false
	}
	layout, _ = strconv.Atoi(parts[2])
	index, _ = strconv.Atoi(parts[3])
	return parts[1], layout, index, parts[4], true
}

// Pattern tells a person how the keys of a queue look; L stands for its layout.
func (k Keys) Pattern(queue string) string { return "lk:{" + k.cluster + "/" + queue + "/L/0/*}:*" }

// ShardKeys are the names of a shard's keys.
type ShardKeys struct {
	Tag string // what all of them begin with

	Jobs, Ready, Due, Retry, Blocked string // where ids wait, and their records
	Stale                            string // scheduled ids whose entries in ready are of deleted jobs
	Late                             string // failed ids whose turn has come: in ready, or in quarantine
	Postponed                        string // since when ids wait that were put off
	Claim, Flight, Parked            string // who owns the shard, what is being handled
	Suspects, Crashes                string // quarantine
	Morgue, Dead                     string // payloads out of retries
	Count, Spill, Spillx             string // counters; payloads of crowded ids
	Aside                            string // records that could not be read
	Journal, Journalx                string // how runs ended, see internal/journal; what of that there is to trim
	States, Statesx                  string // what handlers keep of ids, and when that was written
	Since                            string // when the first push came of ids that pushes put off
	Progress                         string // of ids in flight, as their handlers note it
	From                             string // by source of deliveries: the number of the last one
	Reply                            string // begins the keys of replies to calls, see ReplyTo
	Wake                             string // channel that wakes the owner
}

// Shard are the keys of a shard.
func (k Keys) Shard(queue string, layout, index int) ShardKeys {
	tag := "lk:{" + placed(k.cluster+"/"+queue+"/"+strconv.Itoa(layout), index) + "}:"
	return ShardKeys{
		Tag:  tag,
		Jobs: tag + "jobs", Ready: tag + "ready", Due: tag + "due", Retry: tag + "retry", Blocked: tag + "blocked", Stale: tag + "stale",
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

// ReplyTo is the key of the reply to a call.
func (k *ShardKeys) ReplyTo(token string) string { return k.Reply + ":" + token }

// For are the keys of a script, in the order in which its head names them. It panics if they are
// not a shard's.
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
		"zset":   {k.Due, k.Retry, k.Blocked, k.Dead, k.Spill, k.Statesx, k.Since, k.Postponed},
	} {
		for _, key := range keys {
			types[key] = kind
		}
	}
	return types
}
