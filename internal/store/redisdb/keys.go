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
	Coming                           string // former shards that a closed shard waits for; see lua/take.lua
	Out                              string // follow-ups that wait to be delivered
	Reply                            string // beginning of the keys of replies to calls, see ReplyTo
	Wake                             string // channel that wakes the owner
}

// Freeze says how lua/freeze.lua treats a key of a shard that it freezes.
type Freeze string

// The first three values are the blocks of keys in the head of lua/freeze.lua.
const (
	Moves  Freeze = "moves"  // it is renamed to the name that Old returns
	Empty  Freeze = "empty"  // it does not exist, or nothing needs it after the last flight
	Stays  Freeze = "stays"  // it stays readable under its name
	NotKey Freeze = "no key" // it is not the name of a key
)

// ShardKey is a key of a shard.
type ShardKey struct {
	Name   string // without the tag
	Type   string // in Redis
	Freeze Freeze
	field  *string
}

// List returns all keys of a shard, in the order of lua/freeze.lua. It is the only list of them. The types of keys, the
// names in the heads of scripts and the keys that a reshard copies come from it.
func (k *ShardKeys) List() []ShardKey {
	return []ShardKey{
		{"count", "hash", Moves, &k.Count}, {"claim", "hash", Moves, &k.Claim}, {"jobs", "hash", Moves, &k.Jobs},
		{"ready", "list", Moves, &k.Ready}, {"due", "zset", Moves, &k.Due}, {"retry", "zset", Moves, &k.Retry}, {"blocked", "zset", Moves, &k.Blocked},
		{"suspects", "list", Moves, &k.Suspects}, {"crashes", "hash", Moves, &k.Crashes},
		{"stale", "hash", Moves, &k.Stale}, {"urgent", "zset", Moves, &k.Urgent}, {"late", "hash", Moves, &k.Late}, {"postponed", "zset", Moves, &k.Postponed},
		{"morgue", "hash", Moves, &k.Morgue}, {"dead", "zset", Moves, &k.Dead}, {"spill", "zset", Moves, &k.Spill}, {"spillx", "hash", Moves, &k.Spillx},
		{"aside", "hash", Moves, &k.Aside}, {"states", "hash", Moves, &k.States}, {"statesx", "zset", Moves, &k.Statesx}, {"since", "zset", Moves, &k.Since},
		{"flight", "list", Empty, &k.Flight}, {"parked", "hash", Empty, &k.Parked}, {"progress", "hash", Empty, &k.Progress}, {"coming", "hash", Empty, &k.Coming}, {"out", "stream", Empty, &k.Out},
		{"from", "hash", Stays, &k.From}, {"journal", "stream", Stays, &k.Journal}, {"journalx", "list", Stays, &k.Journalx},
		{"reply", "", NotKey, &k.Reply}, {"wake", "", NotKey, &k.Wake},
	}
}

// Shard returns the keys of a shard.
func (k Keys) Shard(queue string, layout, index int) ShardKeys {
	keys := ShardKeys{Tag: "lk:{" + shardTag(k.cluster+"/"+queue+"/"+strconv.Itoa(layout), index) + "}:"}
	for _, key := range keys.List() {
		*key.field = keys.Tag + key.Name
	}
	return keys
}

// Old returns the name of a key after a freeze.
func (k *ShardKeys) Old(name string) string { return k.Tag + "old:" + name }

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
	for _, key := range k.List() {
		if key.Freeze != NotKey {
			types[k.Tag+key.Name] = key.Type
		}
		if key.Freeze == Moves {
			types[k.Old(key.Name)] = key.Type
		}
	}
	return types
}
