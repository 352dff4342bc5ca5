package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// The rules of a queue at run time are the rules of the configuration, with settings in place of some of them (package
// queue/rules). A node reads the settings with each renewal of its lease. So a change is in force after two renewals
// at most, and a setting ends with the first renewal after its time.

// withSettings returns the rules with a queue's settings in force. It leaves out settings that cannot be read, and names
// them in the error.
func (cfg QueueConfig) withSettings(set rules.Set, now time.Time) (QueueConfig, error) {
	live, err := set.Apply(cfg.Rules, now)
	live = live.WithDefaults(cfg.Shards)
	if cfg.State == 0 {
		live.State = 0 // settings cannot turn states on, because a pop may be on its way that asked for none
	}
	if of, there := set.InForce(now)["retry_in"]; there {
		if _, wrong := rules.Compact("retry_in", of.Value); wrong == nil {
			cfg.RetryFunc = nil
		}
	}
	cfg.Rules, cfg.held = live, rules.NewHeld(live.Holds)
	return cfg, err
}

// ruleBases returns the rules of the configuration with their origin, for people. cfg has no defaults. shards (0 if unknown)
// and agreed are the values in the registry.
func (cfg QueueConfig) ruleBases(concurrency, shards int, agreed rules.Push) map[string]rules.Base {
	own := cfg.Rules
	own.Concurrency, own.Push = concurrency, agreed.Or(own.Push)
	all := own.Bases(cmp.Or(cfg.Shards, shards, 16), cfg.Sources)
	from := func(key, source string) {
		base := all[key]
		base.From = cmp.Or(cfg.Sources[key], source)
		all[key] = base
	}
	if cfg.Concurrency == 0 {
		from("concurrency", "default")
	}
	all["shards"] = rules.Base{Value: cmp.Or(cfg.Shards, shards, 16), From: "default"}
	switch {
	case cfg.Shards != 0:
		from("shards", "program")
	case shards != 0:
		from("shards", rules.Registry)
	}
	for _, key := range cfg.Rules.Push.Missing(agreed) { // another node or program has registered it
		from(key, rules.Registry)
	}
	if cfg.RetryFunc != nil {
		all["retry_in"] = rules.Base{Value: "a function", From: "program"}
	}
	return all
}

// Rules returns the rules of a queue in this node's configuration by key, or nil if the node does not handle the queue.
// Settings of the run time are not included.
func (n *Node) Rules(name string) map[string]rules.Base {
	on := n.queues.handled[name]
	if on == nil {
		return nil
	}
	concurrency := on.maxCalls(&on.rules)
	if concurrency == 0 {
		concurrency = n.cfg.Concurrency
	}
	var entry protocol.RegistryEntry
	if registry := n.queues.registry.Load(); registry != nil {
		entry = registry.entries[name]
	}
	return on.configured.ruleBases(concurrency, entry.Shards, entry.Push)
}

// inForce has the settings that this process uses.
type inForce struct {
	book    rules.Book
	version string // of the settings, at the last reading
	sets    map[string]rules.Set
	changed bool                         // sets differ from the settings in force
	ends    map[string]time.Time         // time when the next setting or hold of a queue ends, by Redis's clock, if any ends
	values  map[string]map[string]string // values of settings by queue and key, at the last reading
	logged  map[[2]string]error          // the last logged error by queue ("" for all) and words
	askedAt atomic.Int64                 // time before the request for the settings in force, by sinceBoot
}

// readRules reads the settings and puts them in force. One goroutine at a time calls it. If Redis has something other than
// valid settings, readRules logs that once, and the settings in force stay. It returns an error if Redis could not be
// asked.
func (q *queues) readRules(ctx context.Context) error {
	live, asked := &q.inForce, sinceBoot()
	page, err := live.book.Read(ctx, live.version, live.changed || len(live.ends) > 0)
	if err != nil && (protocol.Transient(err) || ctx.Err() != nil) {
		return err
	}
	if page.Queues != nil {
		q.parseRules(page)
	}
	q.logOnce("settings cannot be read, so those in force stay", "", err)
	defer live.askedAt.Store(int64(asked)) // at the end, when the settings are in force
	if page.Now.IsZero() {
		return nil // no setting has changed, and no setting ends
	}
	q.applyDueSettings(page.Now)
	return nil
}

// applyDueSettings puts changed settings in force, and ends settings whose time is over. It parses no other settings, because
// it runs with each renewal of the lease while any setting has an end.
func (q *queues) applyDueSettings(now time.Time) {
	live := &q.inForce
	if live.changed {
		for name := range live.values {
			if _, there := live.sets[name]; !there {
				q.applySettings(name, rules.Set{}, now)
			}
		}
	}
	for name, set := range live.sets {
		if end, ends := live.ends[name]; live.changed || ends && !now.Before(end) {
			q.applySettings(name, set, now)
		}
	}
	live.changed = false
}

// parseRules sets inForce.sets. If a queue's settings cannot be read, the last valid settings stay in force.
func (q *queues) parseRules(page rules.Page) {
	live := &q.inForce
	was := live.sets
	live.changed = true
	maps.DeleteFunc(live.ends, func(name string, _ time.Time) bool { return page.Queues[name] == "" })
	live.version, live.sets = page.Version, make(map[string]rules.Set, len(page.Queues))
	for name, text := range page.Queues {
		set, err := rules.Parse(name, text)
		q.logOnce("changed settings cannot be read, so the settings before them stay", name, err)
		if err == nil {
			live.sets[name] = set
		} else if old, had := was[name]; had {
			live.sets[name] = old
		}
	}
}

// applySettings puts a queue's settings in force as they are at the time now.
func (q *queues) applySettings(name string, set rules.Set, now time.Time) {
	pushed, _ := set.Apply(rules.Rules{}, now)
	if q.inForce.ends[name] = set.NextEnd(pushed.Holds, now); q.inForce.ends[name].IsZero() {
		delete(q.inForce.ends, name)
	}
	q.client.Registry().SetLimits(name, pushed.Push)
	values := map[string]string{}
	for key, of := range set.InForce(now) {
		if _, err := rules.Compact(key, of.Value); err == nil {
			values[key] = string(of.Value)
		}
	}
	same := maps.Equal(q.inForce.values[name], values)
	if q.inForce.values[name] = values; len(values) == 0 {
		delete(q.inForce.values, name)
	}
	on := q.handled[name]
	if on == nil {
		return
	}
	live, err := on.rulesOf(on.shards).withSettings(set, now)
	q.logOnce("some settings are left out", name, err)
	if same && reflect.DeepEqual(on.rulesNow().Holds, live.Holds) { // each hold ends by itself
		return
	}
	q.client.SetDeadTo(name, live.Then.Dead)
	q.log.Info("settings changed", "queue", name, "revision", set.Rev, "set", fmt.Sprint(slices.Sorted(maps.Keys(values))))
	on.apply(live, len(values))
}

// logOnce logs an error when it appears or changes. A nil err means that the problem is over.
func (q *queues) logOnce(words, queue string, err error) {
	about := [2]string{queue, words}
	was := q.inForce.logged[about]
	delete(q.inForce.logged, about)
	if err == nil {
		return
	}
	q.inForce.logged[about] = err
	if was == nil || was.Error() != err.Error() {
		q.log.Error(words, "queue", queue, "err", err)
	}
}

// rulesNow returns the rules in force.
func (on *handled) rulesNow() *QueueConfig { return on.live.Load() }

// rulesOf returns the rules of the configuration for a number of shards, without settings.
func (on *handled) rulesOf(shards int) QueueConfig {
	cfg := on.rules
	cfg.Shards, cfg.Journal = shards, on.configured.Journal.WithDefaults(shards)
	return cfg
}

// apply puts rules in force. settings is the number of rules that were set at run time.
func (on *handled) apply(live QueueConfig, settings int) {
	on.live.Store(&live)
	on.metrics.Rules.Set(float64(settings))
	if change := on.change.Load(); change != nil {
		(*change)()
	}
}

// forRunner returns the rules for runners.
func (cfg *QueueConfig) forRunner(format func(error) string) runner.Rules {
	lines := cfg.Journal.PerShard(cfg.Shards)
	lines.Track(cfg.Tracked)
	of := cfg.Rules
	if of.Limit.Rate.N > 0 {
		of.BatchSize = min(of.BatchSize, of.Limit.Burst) // the rate never allows a larger batch
	}
	return runner.Rules{
		Rules: of, ShardJournal: lines, Encode: cfg.Codec.Encode, Decode: cfg.Codec.Decode, RetryFunc: cfg.RetryFunc, Held: cfg.held, FormatError: format,
		OnExhausted: verdict.DecodedHook(cfg.Codec.Decode, cfg.OnExhausted), OnBuried: verdict.DecodedHook(cfg.Codec.Decode, cfg.OnBuried), OnRecovered: cfg.OnRecovered,
	}
}
