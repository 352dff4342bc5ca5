package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// What a queue's rules are at run time: those of the configuration, and the settings that take their place (package
// queue/rules). A node reads the settings with each renewal of its lease, so that a change is in force after two at
// most, and ends a setting whose time is over with the next one.

// with are the rules with what was set at run time in its place.
func (cfg QueueConfig) with(v rules.Values) QueueConfig {
	set(&cfg.BatchSize, v.BatchSize)
	set(&cfg.Concurrency, v.Concurrency)
	set(&cfg.ShardConcurrency, v.ShardConcurrency)
	set(&cfg.Prefetch, v.Prefetch)
	if v.Priority != nil {
		cfg.Priority = *v.Priority
	}
	set(&cfg.MaxRetryCount, v.MaxRetryCount)
	set(&cfg.MaxCrashes, v.MaxCrashes)
	set(&cfg.HandlerTimeout, v.HandlerTimeout)
	set(&cfg.StuckAfter, v.StuckAfter)
	if cfg.State != 0 && v.State != nil { // whether handlers keep one is the configuration's: a flight may be on its way without
		if cfg.State = *v.State; cfg.State == 0 {
			cfg.State = -1
		}
	}
	if v.Exhausted != nil {
		cfg.Exhausted = queue.Policy(*v.Exhausted)
	}
	if v.Scheduler != nil {
		cfg.Scheduler = Scheduler(*v.Scheduler)
	}
	if v.RetryIn != nil {
		cfg.RetryIn = v.RetryIn.Delay
	}
	if v.Journal != nil {
		cfg.Journal = Journal{Runs: JournalRuns(v.Journal.Runs), Keep: v.Journal.Keep, For: v.Journal.For}.withDefaults(cfg.Shards)
	}
	if v.Morgue != nil {
		cfg.Morgue = Morgue(*v.Morgue)
	}
	if v.Limit != nil {
		cfg.Limit = v.Limit.WithDefaults()
	}
	if v.Groups != nil {
		cfg.Groups = v.Groups.WithDefaults()
	}
	if v.Expire != nil {
		cfg.Expire = *v.Expire
	}
	cfg.tracked, cfg.held = v.Tracked, rules.NewHeld(v.Holds)
	return cfg
}

// set gives a field its value; 0, which is none in a setting, is below 0 in a configuration.
func set[T int | time.Duration](field *T, value *T) {
	if value == nil {
		return
	}
	if *field = *value; *value == 0 {
		*field = -1
	}
}

// source says where the value of a key comes from.
func (cfg *QueueConfig) source(key string, given bool) string {
	if from := cfg.Sources[key]; from != "" {
		return from
	}
	if given {
		return "program"
	}
	return "default"
}

// bases are the rules of the configuration, in the words of its file. cfg is as it was given, without
// defaults; shards, 0 if unknown, and limits are those of the registry.
func (cfg QueueConfig) bases(concurrency, shards int, limits queue.Limits) map[string]rules.Base {
	full, all := cfg, map[string]rules.Base{}
	full.Shards = cmp.Or(cfg.Shards, shards)
	full = full.WithDefaults()
	add := func(key string, value any, given bool) {
		all[key] = rules.Base{Value: value, From: cfg.source(key, given)}
	}
	duration := func(d time.Duration) string { return rules.Duration(max(0, d)) }
	add("batch_size", full.BatchSize, cfg.BatchSize != 0)
	add("concurrency", concurrency, cfg.Concurrency != 0)
	add("limit", full.Limit, cfg.Limit != (rules.Limit{}))
	add("groups", full.Groups, cfg.Groups != (rules.Groups{}))
	add("shard_concurrency", full.ShardConcurrency, cfg.ShardConcurrency != 0)
	add("prefetch", full.Prefetch, cfg.Prefetch != 0)
	add("scheduler", full.Scheduler, cfg.Scheduler != "")
	add("priority", full.Priority, cfg.Priority != 0)
	add("handler_timeout", duration(full.HandlerTimeout), cfg.HandlerTimeout != 0)
	add("max_retry_count", max(0, full.MaxRetryCount), cfg.MaxRetryCount != 0)
	add("max_crashes", max(0, full.MaxCrashes), cfg.MaxCrashes != 0)
	add("exhausted", full.Exhausted, cfg.Exhausted != "")
	add("journal", journalShown(full.Journal), cfg.Journal != (Journal{}))
	add("morgue", morgueShown(full.Morgue), cfg.Morgue != (Morgue{}))
	add("expire", expireShown(full.Expire), cfg.Expire != (rules.Expire{}))
	add("stuck_after", duration(full.StuckAfter), cfg.StuckAfter != 0)
	add("tracked", []string{}, false)
	add("holds", []rules.Hold{}, false)
	registered := func(key string, value any, there, own bool) {
		add(key, value, own)
		if !own && there {
			all[key] = rules.Base{Value: value, From: rules.Registry} // another node or program has written it there
		}
	}
	registered("shards", full.Shards, shards != 0, cfg.Shards != 0)
	hold := limits.Effective()
	registered("max_payload_size", rules.SizeText(hold.PayloadBytes), limits.PayloadBytes != 0, cfg.Push.PayloadBytes != 0)
	registered("max_id_payloads", hold.Payloads, limits.Payloads != 0, cfg.Push.Payloads != 0)
	registered("max_id_size", rules.SizeText(hold.IDPayload), limits.IDPayload != 0, cfg.Push.IDPayload != 0)
	registered("coalesce", cmp.Or(hold.Coalesce, rules.CoalesceAll), limits.Coalesce != "", cfg.Push.Coalesce != "")
	registered("debounce", hold.Debounce.Shown(), limits.Debounce != (rules.Debounce{}), cfg.Push.Debounce != (rules.Debounce{}))
	switch {
	case cfg.RetryIn == nil:
		add("retry_in", map[string]any{"base": "15s", "power": 4, "jitter": "30s"}, false)
	case cfg.RetryInShown != nil:
		add("retry_in", cfg.RetryInShown, true)
	default:
		add("retry_in", "a function", true)
	}
	assumed := func(key string, parts []string) {
		base := all[key]
		base.Assumed = parts
		all[key] = base
	}
	assumed("limit", cfg.Limit.Assumed())
	assumed("groups", cfg.Groups.Assumed())
	assumed("debounce", limits.Debounce.Assumed())
	if cfg.State != 0 {
		add("state", duration(cfg.State), true)
	}
	return all
}

func expireShown(e rules.Expire) any {
	if e == (rules.Expire{}) {
		return "never"
	}
	shown := map[string]any{"to": cmp.Or(e.To, rules.ExpireMorgue)}
	if e.After > 0 {
		shown["after"] = rules.Duration(e.After)
	}
	return shown
}

func journalShown(j Journal) any {
	shown := map[string]any{"runs": j.Runs, "keep": j.Keep}
	if j.For > 0 {
		shown["for"] = rules.Duration(j.For)
	}
	return shown
}

// Rules are the rules of a queue in this node's configuration, by key; nil if the node does not handle it. What takes
// their place at run time is not in them.
func (n *Node) Rules(name string) map[string]rules.Base {
	on := n.queues.handled[name]
	if on == nil {
		return nil
	}
	concurrency := on.concurrency(&on.rules)
	if concurrency == 0 {
		concurrency = n.cfg.Concurrency
	}
	var entry queue.Entry
	if registry := n.queues.registry.Load(); registry != nil {
		entry = registry.all[name]
	}
	return on.configured.bases(concurrency, entry.Shards, entry.Limits)
}

// inForce is what this process goes by.
type inForce struct {
	book    rules.Book
	version string // of the settings, at the last look
	sets    map[string]rules.Set
	ends    bool                    // some of sets end
	values  map[string]rules.Values // by queue; those of the last look
	said    map[[2]string]error     // what was logged of a queue, "" for all, and in which words
	asked   atomic.Int64            // sinceBoot before Redis was asked for what is in force
}

// readRules reads what was changed at run time, and puts it in force. It is called by one goroutine at a time. What Redis has
// in the place of settings and is none is logged once, and leaves in force what is; an error says that Redis could not be asked.
func (q *queues) readRules(ctx context.Context) error {
	live, asked := &q.inForce, sinceBoot()
	page, err := live.book.Read(ctx, live.version, live.ends)
	if queue.Transient(err) || ctx.Err() != nil {
		return err
	}
	if page.Queues != nil {
		q.parseRules(page)
	}
	q.say("rules that were set at run time cannot be read: those in force stay", "", err)
	defer live.asked.Store(int64(asked)) // once it is in force
	if page.Now.IsZero() {
		return nil // nothing has changed, and nothing ends
	}
	now := page.Now
	for name := range live.values {
		if _, there := live.sets[name]; !there {
			q.obey(name, rules.Set{}, now)
		}
	}
	for name, set := range live.sets {
		q.obey(name, set, now)
	}
	return nil
}

// parseRules takes in sets. Of one that cannot be read the last one that could stays in force.
func (q *queues) parseRules(page rules.Page) {
	live := &q.inForce
	was := live.sets
	live.ends = false
	live.version, live.sets = page.Version, make(map[string]rules.Set, len(page.Queues))
	for name, text := range page.Queues {
		set, err := rules.Parse(name, text)
		q.say("rules were changed at run time, and cannot be read: those before them stay", name, err)
		if err == nil {
			live.sets[name] = set
		} else if old, had := was[name]; had {
			live.sets[name] = old
		}
		live.ends = live.ends || live.sets[name].Ends()
	}
}

// obey puts a queue's settings in force as they are now.
func (q *queues) obey(name string, set rules.Set, now time.Time) {
	values, err := set.Values(now)
	if on := q.handled[name]; on != nil {
		agreed, left := values.Agreed(string(on.rules.Scheduler), on.rules.Priority)
		values, err = agreed, errors.Join(err, left)
		q.say("rules that were set at run time are left out", name, err)
	}
	if was, known := q.inForce.values[name]; known && reflect.DeepEqual(was, values) || !known && reflect.DeepEqual(values, rules.Values{}) {
		return
	}
	q.inForce.values[name] = values
	if reflect.DeepEqual(values, rules.Values{}) {
		delete(q.inForce.values, name)
	}
	q.client.Registry().SetLimits(name, queue.LimitsOf(values))
	on := q.handled[name]
	if on == nil {
		return
	}
	changed := on.rules.with(values)
	on.live.Store(&changed)
	on.metrics.Rules.Set(float64(len(set.InForce(now))))
	q.log.Info("rules changed at run time", "queue", name, "revision", set.Rev, "set", fmt.Sprint(slices.Sorted(maps.Keys(set.InForce(now)))))
	if change := on.change.Load(); change != nil {
		(*change)()
	}
}

// say logs what is wrong once, until it is something else, or nothing.
func (q *queues) say(words, queue string, err error) {
	about := [2]string{queue, words}
	was := q.inForce.said[about]
	delete(q.inForce.said, about)
	if err == nil {
		return
	}
	q.inForce.said[about] = err
	if was == nil || was.Error() != err.Error() {
		q.log.Error(words, "queue", queue, "err", err)
	}
}

// rulesNow are those in force.
func (on *handled) rulesNow() *QueueConfig {
	if live := on.live.Load(); live != nil {
		return live
	}
	return &on.rules
}

// forRunner are the rules as runners have them.
func (cfg *QueueConfig) forRunner(format func(error) string) runner.Rules {
	journal := cfg.Journal.perShard(cfg.Shards)
	journal.Track(cfg.tracked)
	batch := cfg.BatchSize
	if cfg.Limit.Rate.N > 0 {
		batch = min(batch, cfg.Limit.Burst) // more at once never may
	}
	return runner.Rules{
		BatchSize: batch, Limit: cfg.Limit, Groups: cfg.Groups, ShardConcurrency: cfg.ShardConcurrency, Prefetch: cfg.Prefetch, HandlerTimeout: cfg.HandlerTimeout,
		MaxRetryCount: cfg.MaxRetryCount, MaxCrashes: cfg.MaxCrashes, Exhausted: cfg.Exhausted, RetryIn: cfg.RetryIn,
		States: cfg.State != 0, StateFor: max(0, cfg.State), Encode: cfg.Push.Codec.Encode, Journal: journal,
		Expire: cfg.Expire, StuckAfter: cfg.StuckAfter, Held: cfg.held, InTurn: cfg.Scheduler == Seq, HeadStart: time.Duration(cfg.Priority) * rules.HeadStart,
		OnExhausted: decodedHook(cfg.Push.Codec.Decode, cfg.OnExhausted), OnBuried: decodedHook(cfg.Push.Codec.Decode, cfg.OnBuried), OnRecovered: cfg.OnRecovered, FormatError: format,
	}
}
