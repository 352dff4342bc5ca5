package rules

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/text/bounds"
)

// Scheduler orders the shards that wait for one of a node's handler slots.
type Scheduler string

// The schedulers.
const (
	Lag Scheduler = "lag" // the shard with the oldest due job first
	Seq Scheduler = "seq" // the shard that waits longest first
)

// HeadStart is how much earlier the jobs of a queue count as due, per level of its priority, when
// queues wait for the slots of a node.
const HeadStart = 10 * time.Second

// Policy says what happens to a job that is out of retries; see protocol.Policy.
type Policy string

// What happens to a payload that is pushed while other payloads wait for its id.
const (
	CoalesceAll    = "all"    // all payloads wait
	CoalesceLatest = "latest" // only the payload with the highest score waits, and the last of equal scores
	CoalesceOnce   = "once"   // it is merged into the waiting payload
)

// Debounce delays an id with each push. The id is due Quiet after the last push, and at the latest
// Most after the first. The zero value does not delay.
type Debounce struct {
	Quiet time.Duration `rule:"quiet" min:"1ms" max:"24h" json:"quiet,omitempty"`
	Most  time.Duration `rule:"most" min:"1ms" max:"24h" json:"most,omitempty"` // the default is ten times quiet
}

// NoDebounce delays nothing, even where another rule would.
var NoDebounce = Debounce{Quiet: -1}

const maxDebounce = 24 * time.Hour

// WithDefaults returns the rule with the default of Most.
func (d Debounce) WithDefaults() Debounce {
	d.setDefaults()
	return d
}

func (d *Debounce) setDefaults() {
	if d.Quiet > 0 && d.Most == 0 {
		d.Most = min(10*d.Quiet, maxDebounce)
	}
}

func (d *Debounce) setWord(string) { *d = NoDebounce }

func (d *Debounce) asWord() string {
	if *d == NoDebounce {
		return "none"
	}
	return ""
}

func (d *Debounce) checkParts() error {
	switch {
	case d.Quiet == 0:
		return errors.New("must be none or {quiet, most}; quiet is missing")
	case d.Most > 0 && d.Most < d.Quiet:
		return valueError(".most", "%s is less than quiet, %s", bounds.Duration(d.Most), bounds.Duration(d.Quiet))
	}
	return nil
}

// Journal says which runs of a queue get a line, how many lines are kept, and for how long. A run
// is a handler call for an id. Each shard keeps its part of Keep. It drops lines when it writes, so
// up to a tenth more lines may exist meanwhile.
type Journal struct {
	Runs JournalRuns   `rule:"runs" oneof:"failures,all,none"` // "" means failures; without the key in a file, all
	Keep int           `rule:"keep" min:"1" max:"1000000000"`  // lines of the queue. The default is 64 per shard for failures, and 50,000 for all runs
	For  time.Duration `rule:"for" min:"1s" max:"87600h"`      // 0 means for ever
}

// JournalRuns says which runs get a line. Crashes always get a line.
type JournalRuns string

// The runs of a journal.
const (
	JournalFailures = JournalRuns(journal.Failures) // failed runs; the default
	JournalAll      = JournalRuns(journal.All)
	JournalNone     = JournalRuns(journal.None)
)

func (j *Journal) setWord(word string) { j.Runs = JournalRuns(word) }

func (j *Journal) checkParts() error {
	j.Runs = cmp.Or(j.Runs, JournalAll) // a mapping without runs means all runs
	return nil
}

// WithDefaults returns the rule with the defaults of Runs and Keep.
func (j Journal) WithDefaults(shards int) Journal {
	j.Runs = cmp.Or(j.Runs, JournalFailures)
	if j.Keep == 0 && j.Runs == JournalAll {
		j.Keep = 50_000
	}
	j.Keep = cmp.Or(j.Keep, journal.Default.Keep*max(1, shards))
	return j
}

// PerShard returns the rule of a single shard.
func (j Journal) PerShard(shards int) journal.Rule {
	j = j.WithDefaults(shards)
	return journal.Rule{Runs: journal.Runs(j.Runs), Keep: perShard(j.Keep, shards), For: j.For}
}

func perShard(n, shards int) int { return (n + max(1, shards) - 1) / max(1, shards) }

// Morgue says how many ids the morgue of a queue keeps, the last buried first, and for how long
// after their last burial. Everything else is deleted within a quarter of a minute. 0 means any
// number, or for ever.
type Morgue struct {
	Keep int           `rule:"keep" min:"1" max:"1000000000"`
	For  time.Duration `rule:"for" min:"1s" max:"87600h"`
}

// PerShard returns how many ids a shard keeps. 0 means any number.
func (m Morgue) PerShard(shards int) int { return perShard(m.Keep, shards) }

// Expire says when a payload expires, counted from its due time, and what happens to it then. If
// After is 0 a payload expires only by its header.
type Expire struct {
	After time.Duration `rule:"after" min:"1s" max:"8760h"`
	To    ExpireTo      `rule:"to" oneof:"morgue,drop"`
}

// ExpireTo says where expired payloads go.
type ExpireTo string

// The values of ExpireTo.
const (
	ExpireMorgue ExpireTo = "morgue" // people can see them there; the default
	ExpireDrop   ExpireTo = "drop"   // they are deleted
)

func (e *Expire) setDefaults() {
	if e.After > 0 && e.To == "" {
		e.To = ExpireMorgue
	}
}

// RetryIn is the delay before the next attempt. It is a formula, where nil fields have their
// defaults, or a list.
type RetryIn struct {
	Base   *time.Duration  `rule:"base" min:"0s" least:"1ms" max:"8760h"`
	Power  *float64        `rule:"power" min:"0" max:"10"`
	Jitter *time.Duration  `rule:"jitter" min:"0s" least:"1ms" max:"8760h"`
	Delays []time.Duration // the last delay repeats
}

// IsZero reports whether nothing is set, so that the formula has its defaults.
func (r RetryIn) IsZero() bool {
	return r.Base == nil && r.Power == nil && r.Jitter == nil && len(r.Delays) == 0
}

const retryForms = "{base, power, jitter} or a list of durations"

// retryFormula parses and shows the formula.
var retryFormula = row{typ: reflect.TypeFor[RetryIn]()}

func (r *RetryIn) readJSON(value json.RawMessage) error {
	if value[0] != '[' {
		if value[0] != '{' {
			return fmt.Errorf("want %s, got %s", retryForms, bounds.Got(value))
		}
		return retryFormula.readParts(reflect.ValueOf(r).Elem(), value)
	}
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil || len(list) == 0 {
		return fmt.Errorf("want %s, got an empty list", retryForms)
	}
	delays := make([]time.Duration, len(list))
	for i := range list {
		if err := bounds.Read(reflect.ValueOf(&delays[i]).Elem(), findRow(rowsOf(retryFormula.typ), "base").tag, list[i]); err != nil {
			return inPart(fmt.Sprintf("[%d]", i), err)
		}
	}
	*r = RetryIn{Delays: delays}
	return nil
}

func (r *RetryIn) shownValue() any {
	if len(r.Delays) == 0 {
		return retryFormula.showParts(reflect.ValueOf(r).Elem())
	}
	list := make([]string, len(r.Delays))
	for i, d := range r.Delays {
		list[i] = bounds.Duration(d)
	}
	return list
}

func (r *RetryIn) setDefaults() {
	if len(r.Delays) > 0 {
		return
	}
	base, power, jitter := 15*time.Second, 4.0, 30*time.Second
	r.Base, r.Power, r.Jitter = cmp.Or(r.Base, &base), cmp.Or(r.Power, &power), cmp.Or(r.Jitter, &jitter)
}

// LongestDelay is the maximum delay. It keeps a steep formula from overflowing.
const LongestDelay = 365 * 24 * time.Hour

// Delay returns the delay after a failure, where count is the retry count after it. The formula is
// count^power seconds + base + a random part of jitter * (count+1). Its defaults 4, 15 s and 30 s
// are those of Ruby's Lowkiq.
func (r RetryIn) Delay(count int) time.Duration {
	if len(r.Delays) > 0 {
		return r.Delays[min(count, len(r.Delays)-1)]
	}
	r.setDefaults()
	seconds := math.Pow(float64(count), *r.Power) + r.Base.Seconds() + rand.Float64()*r.Jitter.Seconds()*float64(count+1)
	return time.Duration(min(seconds, LongestDelay.Seconds()) * float64(time.Second))
}

// IDs is a list of ids in a rule, each once.
type IDs []string

// MaxTracked is the maximum number of tracked ids of a queue.
const MaxTracked = 1000

func (ids *IDs) readJSON(value json.RawMessage) error {
	var read []string
	if err := json.Unmarshal(value, &read); err != nil || read == nil {
		return fmt.Errorf("want a list of ids, got %s", bounds.Got(value))
	}
	if len(read) > MaxTracked {
		return fmt.Errorf("%d ids, at most %d of a queue are tracked", len(read), MaxTracked)
	}
	for i, id := range read {
		if id == "" || len(id) > lowkiq.MaxIDBytes {
			return fmt.Errorf("id %.60q has %d bytes, want 1 to %d", id, len(id), lowkiq.MaxIDBytes)
		}
		if slices.Contains(read[:i], id) {
			return fmt.Errorf("id %.60q is there twice, want it once", id)
		}
	}
	*ids = read
	return nil
}

func (ids *IDs) shownValue() any { return append([]string{}, *ids...) }
