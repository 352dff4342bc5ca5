package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/near"
)

// Values are those of the keys that may change at run time. A nil field is not set.
type Values struct {
	BatchSize, Concurrency, ShardConcurrency, Prefetch *int
	MaxRetryCount, MaxCrashes                          *int           // 0: none
	Priority                                           *int           // 0 to MaxPriority
	HandlerTimeout                                     *time.Duration // 0: none
	State                                              *time.Duration // 0: for ever
	StuckAfter                                         *time.Duration // 0: never
	RetryIn                                            *RetryIn
	Exhausted, Scheduler                               *string
	Journal                                            *Journal
	Morgue                                             *Morgue
	Expire                                             *Expire
	Limit                                              *Limit
	Groups                                             *Groups
	Coalesce                                           *string
	Debounce                                           *Debounce
	Tracked                                            []string // ids whose runs are kept, whatever Journal says
	Holds                                              []Hold   // those whose time is not over
	PayloadBytes, Payloads, IDBytes                    *int
}

// Journal says of which runs a queue keeps lines, how many, and for how long.
type Journal struct {
	Runs string // failures, all or none
	Keep int    // 0: the default
	For  time.Duration
}

// Morgue says how many ids a queue's morgue keeps, and for how long. 0: any number, for ever.
type Morgue struct {
	Keep int
	For  time.Duration
}

// Expire says for how long after it is due a payload is of use, and what becomes of it then. After 0: for ever, unless its
// header says so.
type Expire struct {
	After time.Duration
	To    ExpireTo // "": ExpireMorgue
}

// ExpireTo is where payloads go that have expired.
type ExpireTo string

// What becomes of payloads that have expired.
const (
	ExpireMorgue ExpireTo = "morgue" // a person sees them
	ExpireDrop   ExpireTo = "drop"   // they are forgotten
)

// RetryIn is the delay before the next attempt: a formula, of which nil fields have their defaults, or a list.
type RetryIn struct {
	Base   *time.Duration
	Power  *float64
	Jitter *time.Duration
	Delays []time.Duration // the last one repeats
}

// LongestDelay keeps a steep formula from overflowing.
const LongestDelay = 365 * 24 * time.Hour

// Delay is that after a failure that made the retry count count. The formula is count^power seconds + base + a random
// part of jitter * (count+1): with 4, 15 s and 30 s, which are its defaults, Lowkiq's.
func (r RetryIn) Delay(count int) time.Duration {
	if len(r.Delays) > 0 {
		return r.Delays[min(count, len(r.Delays)-1)]
	}
	power, base, jitter := 4.0, 15*time.Second, 30*time.Second
	if r.Power != nil {
		power = *r.Power
	}
	if r.Base != nil {
		base = *r.Base
	}
	if r.Jitter != nil {
		jitter = *r.Jitter
	}
	seconds := math.Pow(float64(count), power) + base.Seconds() + rand.Float64()*jitter.Seconds()*float64(count+1)
	return time.Duration(min(seconds, LongestDelay.Seconds()) * float64(time.Second))
}

// ErrValue: a key or a value is not what it must be. The error says what would be right.
var ErrValue = errors.New("rule")

// MaxPriority is the highest priority of a queue. Each level is HeadStart that the queue's jobs count as due earlier, where queues
// wait for a node's slots.
const (
	MaxPriority = 9
	HeadStart   = 10 * time.Second
)

// MaxTracked is how many ids of a queue are tracked at most.
const MaxTracked = 1000

// maxValue bounds a value, bytes.
const maxValue = 64 << 10

// key is one that may change at run time.
type key struct {
	name string
	set  func(v *Values, value json.RawMessage) error
}

const longest = 8760 * time.Hour

// keys are all of them, in the order of the configuration file. Bounds are those of the file.
var keys = []key{
	{"batch_size", number(1, 1000, func(v *Values) **int { return &v.BatchSize })},
	{"concurrency", number(1, 100_000, func(v *Values) **int { return &v.Concurrency })},
	{"limit", setLimit},
	{"groups", setGroups},
	{"shard_concurrency", number(1, 1000, func(v *Values) **int { return &v.ShardConcurrency })},
	{"prefetch", number(1, 1000, func(v *Values) **int { return &v.Prefetch })},
	{"scheduler", word(func(v *Values) **string { return &v.Scheduler }, "lag", "seq")},
	{"priority", number(0, MaxPriority, func(v *Values) **int { return &v.Priority })},
	{"handler_timeout", duration(0, longest, func(v *Values) **time.Duration { return &v.HandlerTimeout })},
	{"max_retry_count", number(0, 1_000_000, func(v *Values) **int { return &v.MaxRetryCount })},
	{"retry_in", setRetryIn},
	{"exhausted", word(func(v *Values) **string { return &v.Exhausted }, "skip", "bury", "block")},
	{"coalesce", word(func(v *Values) **string { return &v.Coalesce }, CoalesceAll, CoalesceLatest, CoalesceOnce)},
	{"debounce", setDebounce},
	{"state", duration(0, 10*longest, func(v *Values) **time.Duration { return &v.State })},
	{"journal", setJournal},
	{"morgue", setMorgue},
	{"expire", setExpire},
	{"stuck_after", setStuckAfter},
	{"tracked", setTracked},
	{"holds", setHolds},
	{"max_crashes", setMaxCrashes},
	{"max_payload_size", size(16<<20, func(v *Values) **int { return &v.PayloadBytes })},
	{"max_id_payloads", number(1, 1_000_000, func(v *Values) **int { return &v.Payloads })},
	{"max_id_size", size(1<<30, func(v *Values) **int { return &v.IDBytes })},
}

// Fixed are the keys of a queue that do not change at run time, and why.
func Fixed() map[string]string {
	return map[string]string{
		"shards":  "the count says in which shard an id is: it stays as it was registered",
		"handler": "who does the work is started with the node: change its file and start it again",
	}
}

// Keys are the names of those that may change, in the order of the configuration file.
func Keys() []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// Check says what is wrong with a value of a key, an ErrValue, and returns the value as it is kept.
func Check(name string, value json.RawMessage) (json.RawMessage, error) {
	var plain bytes.Buffer
	if err := json.Compact(&plain, value); err != nil {
		return nil, fmt.Errorf("%w %s: the value is no JSON: %w", ErrValue, name, err)
	}
	most := maxValue
	if name == "holds" {
		most = maxHolds
	}
	if plain.Len() > most {
		return nil, fmt.Errorf("%w %s: the value has %d bytes, at most %d are allowed", ErrValue, name, plain.Len(), most)
	}
	var v Values
	err := v.set(name, plain.Bytes())
	if err == nil && name == "tracked" {
		err = eachOnce(plain.Bytes(), v.Tracked)
	}
	return plain.Bytes(), err
}

// eachOnce refuses tracked ids of which one is there twice: the list would be longer than what is tracked.
func eachOnce(value json.RawMessage, once []string) error {
	var ids []string
	if err := json.Unmarshal(value, &ids); err != nil {
		return fmt.Errorf("%w tracked: %w", ErrValue, err)
	}
	for i, id := range ids {
		if i >= len(once) || id != once[i] {
			return fmt.Errorf("%w tracked: id %.60q is there twice, want it once", ErrValue, id)
		}
	}
	return nil
}

func (v *Values) set(name string, value json.RawMessage) error {
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	if i >= 0 && len(value) == 0 {
		return fmt.Errorf("%w %s: there is no value", ErrValue, name)
	}
	if i >= 0 {
		if err := keys[i].set(v, value); err != nil {
			return fmt.Errorf("%w %s: %w", ErrValue, name, err)
		}
		return nil
	}
	if why := Fixed()[strings.SplitN(name, ".", 2)[0]]; why != "" {
		return fmt.Errorf("%w %s does not change at run time: %s", ErrValue, name, why)
	}
	if meant := near.Name(name, Keys(), min(3, len(name))); meant != "" {
		return fmt.Errorf("unknown %w %q, did you mean %q?", ErrValue, name, meant)
	}
	return fmt.Errorf("unknown %w %q; there are %s", ErrValue, name, strings.Join(Keys(), ", "))
}

// got is a value as an error shows it.
func got(value json.RawMessage) string {
	if len(value) > 60 {
		return string(value[:60]) + "…"
	}
	return string(value)
}

func number(low, high int, field func(*Values) **int) func(*Values, json.RawMessage) error {
	return func(v *Values, value json.RawMessage) error {
		n, err := strconv.Atoi(string(value))
		if err != nil || n < low || n > high {
			return fmt.Errorf("want a whole number, %d to %d, got %s", low, high, got(value))
		}
		*field(v) = &n
		return nil
	}
}

func setMaxCrashes(v *Values, value json.RawMessage) error {
	if string(value) == "1" {
		return errors.New("1: want 2 or more, or 0 for never: one crash does not tell which of the jobs at work has caused it")
	}
	return number(0, 1_000_000, func(v *Values) **int { return &v.MaxCrashes })(v, value)
}

func word(field func(*Values) **string, allowed ...string) func(*Values, json.RawMessage) error {
	return func(v *Values, value json.RawMessage) error {
		var text string
		if json.Unmarshal(value, &text) != nil || !slices.Contains(allowed, text) {
			return fmt.Errorf("want %s, got %s", strings.Join(allowed, " or "), got(value))
		}
		*field(v) = &text
		return nil
	}
}

func parseDuration(value json.RawMessage, low, high time.Duration) (time.Duration, error) {
	var text string
	err := json.Unmarshal(value, &text)
	var d time.Duration
	if err == nil {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d < low || d > high {
		return 0, fmt.Errorf("want a duration, %s to %s, as in \"30s\", got %s", plain(low), plain(high), got(value))
	}
	return d, nil
}

// Duration is a duration's text without zero units at its end.
func Duration(d time.Duration) string { return plain(d) }

func plain(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

func duration(low, high time.Duration, field func(*Values) **time.Duration) func(*Values, json.RawMessage) error {
	return func(v *Values, value json.RawMessage) error {
		d, err := parseDuration(value, low, high)
		if err == nil {
			*field(v) = &d
		}
		return err
	}
}

// Size is the bytes of a text as in 64MiB; 0 if it is none.
func Size(text string) int64 {
	number, unit := strings.TrimRight(text, "KMGiB"), int64(0)
	switch text[len(number):] {
	case "KiB":
		unit = 1 << 10
	case "MiB":
		unit = 1 << 20
	case "GiB":
		unit = 1 << 30
	}
	n, err := strconv.ParseUint(number, 10, 20)
	if err != nil {
		return 0
	}
	return int64(n) * unit
}

// SizeText is the text of a size.
func SizeText(n int) string {
	for _, unit := range []struct {
		bytes int
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return strconv.Itoa(n/unit.bytes) + unit.name
		}
	}
	return strconv.Itoa(n) + " bytes"
}

func size(high int64, field func(*Values) **int) func(*Values, json.RawMessage) error {
	return func(v *Values, value json.RawMessage) error {
		var text string
		n := int64(0)
		if json.Unmarshal(value, &text) == nil {
			n = Size(text)
		}
		if n < 1 || n > high {
			return fmt.Errorf("want a size, 1KiB to %dMiB, as in \"1MiB\", got %s", high>>20, got(value))
		}
		bytes := int(n)
		*field(v) = &bytes
		return nil
	}
}

// object reads a mapping of which each field has its reader.
func object(value json.RawMessage, fields map[string]func(json.RawMessage) error) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(value, &parts); err != nil || parts == nil {
		return fmt.Errorf("want a mapping, got %s", got(value))
	}
	for name, part := range parts {
		read := fields[name]
		if read == nil {
			return fmt.Errorf("unknown key %q", name)
		}
		if err := read(part); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func durationIn(low, high time.Duration, to func(time.Duration)) func(json.RawMessage) error {
	return func(part json.RawMessage) error {
		d, err := parseDuration(part, low, high)
		if err == nil {
			to(d)
		}
		return err
	}
}

func setRetryIn(v *Values, value json.RawMessage) error {
	var r RetryIn
	var list []json.RawMessage
	if json.Unmarshal(value, &list) == nil && list != nil {
		for _, one := range list {
			d, err := parseDuration(one, 0, longest)
			if err != nil {
				return err
			}
			r.Delays = append(r.Delays, d)
		}
		if len(list) == 0 {
			return errors.New("want {base, power, jitter} or a list of durations, got an empty list")
		}
		v.RetryIn = &r
		return nil
	}
	err := object(value, map[string]func(json.RawMessage) error{
		"base":   durationIn(0, longest, func(d time.Duration) { r.Base = &d }),
		"jitter": durationIn(0, longest, func(d time.Duration) { r.Jitter = &d }),
		"power": func(part json.RawMessage) error {
			var power float64
			if err := json.Unmarshal(part, &power); err != nil || power < 0 || power > 10 {
				return fmt.Errorf("want a number, 0 to 10, got %s", got(part))
			}
			r.Power = &power
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("want {base, power, jitter} or a list of durations: %w", err)
	}
	v.RetryIn = &r
	return nil
}

func setJournal(v *Values, value json.RawMessage) error {
	j := Journal{Runs: "all"}
	runs := func(part json.RawMessage) error {
		var text string
		if json.Unmarshal(part, &text) != nil || !slices.Contains([]string{"failures", "all", "none"}, text) {
			return fmt.Errorf("want failures, all or none, got %s", got(part))
		}
		j.Runs = text
		return nil
	}
	var err error
	if value[0] == '"' {
		err = runs(value)
	} else {
		err = object(value, map[string]func(json.RawMessage) error{
			"runs": runs,
			"keep": count(&j.Keep),
			"for":  durationIn(time.Second, 10*longest, func(d time.Duration) { j.For = d }),
		})
	}
	if err != nil {
		return fmt.Errorf("want failures, all, none or {runs, keep, for}: %w", err)
	}
	v.Journal = &j
	return nil
}

func setMorgue(v *Values, value json.RawMessage) error {
	var m Morgue
	if string(value) != `"all"` {
		err := object(value, map[string]func(json.RawMessage) error{
			"keep": count(&m.Keep),
			"for":  durationIn(time.Second, 10*longest, func(d time.Duration) { m.For = d }),
		})
		if err == nil && m == (Morgue{}) {
			err = errors.New("neither is there")
		}
		if err != nil {
			return fmt.Errorf("want all or {keep, for}: %w", err)
		}
	}
	v.Morgue = &m
	return nil
}

func setExpire(v *Values, value json.RawMessage) error {
	var e Expire
	if string(value) != `"never"` {
		err := object(value, map[string]func(json.RawMessage) error{
			"after": durationIn(time.Second, longest, func(d time.Duration) { e.After = d }),
			"to": func(part json.RawMessage) error {
				var text string
				if json.Unmarshal(part, &text) != nil || text != string(ExpireMorgue) && text != string(ExpireDrop) {
					return fmt.Errorf("want morgue or drop, got %s", got(part))
				}
				e.To = ExpireTo(text)
				return nil
			},
		})
		if err == nil && e == (Expire{}) {
			err = errors.New("neither is there")
		}
		if err != nil {
			return fmt.Errorf("want never or {after, to}: %w", err)
		}
	}
	v.Expire = &e
	return nil
}

func setStuckAfter(v *Values, value json.RawMessage) error {
	low := time.Second
	if string(value) == `"0s"` {
		low = 0
	}
	return duration(low, longest, func(v *Values) **time.Duration { return &v.StuckAfter })(v, value)
}

// count reads how many lines or ids are kept.
func count(to *int) func(json.RawMessage) error {
	return func(part json.RawMessage) error {
		n, err := strconv.Atoi(string(part))
		if err != nil || n < 1 || n > 1_000_000_000 {
			return fmt.Errorf("want a whole number, 1 to 1000000000, got %s", got(part))
		}
		*to = n
		return nil
	}
}

func setTracked(v *Values, value json.RawMessage) error {
	var ids []string
	if err := json.Unmarshal(value, &ids); err != nil || ids == nil {
		return fmt.Errorf("want a list of ids, got %s", got(value))
	}
	if len(ids) > MaxTracked {
		return fmt.Errorf("%d ids, at most %d of a queue are tracked", len(ids), MaxTracked)
	}
	once, given := []string{}, map[string]bool{}
	for _, id := range ids {
		if id == "" || len(id) > lowkiq.MaxIDBytes {
			return fmt.Errorf("id %.60q has %d bytes, want 1 to %d", id, len(id), lowkiq.MaxIDBytes)
		}
		if !given[id] { // an earlier release took ids twice
			once = append(once, id)
		}
		given[id] = true
	}
	v.Tracked = once
	return nil
}
