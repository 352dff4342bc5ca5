package rules

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
)

// Rules has the rules of a queue. A field is a row of the table. Its tags are the only declaration
// of a rule.
//
//	rule     the key in files, variables, requests, forms and --set
//	min …    the bounds, as package bounds has them
//	words    the words that stand for a rule with parts
//	default  the value of a field that is zero
//	at       "run time" for rules that no file has
//	help     the effect of the rule, for docs/configuration.md and the dashboard
//
// The zero value of a field is its default. If 0 itself is a value and the default is another, as
// for max_retry_count, a negative field stands for 0. Only [Rules.Set] and the functions that show
// rules translate between the two.
type Rules struct {
	BatchSize int `rule:"batch_size" min:"1" max:"1000" default:"1" help:"ids per handler call; an id that has failed comes alone"`

	Concurrency int `rule:"concurrency" min:"1" max:"100000" default:"node.concurrency, or the processes of the handler" help:"handler calls of the queue on a node at once"`

	Limit Limit `rule:"limit" words:"none" default:"none" help:"bounds the whole cluster: calls at once, ids handed to handlers in a time, and ids at once after a rest (burst)"`

	Groups Groups `rule:"groups" words:"none" default:"none" help:"bounds the same for ids with the same prefix up to by, as acme:7 and acme:8 have"`

	ShardConcurrency int `rule:"shard_concurrency" min:"1" max:"1000" default:"1" help:"batches of different ids of a shard at once; 4 if a few calls take much longer than most"`

	Prefetch int `rule:"prefetch" min:"1" max:"1000" default:"100" help:"ids popped at once, at most"`

	Scheduler Scheduler `rule:"scheduler" oneof:"lag,seq" default:"lag" help:"which shard's batch is next at a full node: lag the oldest due job, seq in turn"`

	Priority int `rule:"priority" min:"0" max:"9" default:"0" help:"among queues that wait for slots, jobs count as due 10 s earlier per level"`

	HandlerTimeout time.Duration `rule:"handler_timeout" min:"0s" least:"1ms" max:"8760h" default:"30m" help:"ends a handler call after so long; 0s never does"`

	MaxRetryCount int `rule:"max_retry_count" min:"0" max:"1000000" default:"25" help:"retries in a row until exhausted decides; the first failure is none"`

	RetryIn RetryIn `rule:"retry_in" default:"{base: 15s, power: 4, jitter: 30s}" help:"delay before the next attempt: count^power s + base + a random part of jitter * (count + 1); count is 0 after the first failure"`

	Exhausted Policy `rule:"exhausted" oneof:"skip,bury,block" default:"skip" help:"out of retries: skip buries the oldest payload, bury the job, block waits for a person"`

	State time.Duration `rule:"state" min:"0s" least:"1ms" max:"87600h" default:"none" help:"handlers keep a state per id for so long after its last write; 0s is for ever, without it they keep none"`

	Journal Journal `rule:"journal" words:"failures,all,none" default:"failures, the last 64 of a shard" help:"the runs with a line in the journal: how many lines, and for how long; see below"`

	Morgue Morgue `rule:"morgue" words:"all" default:"all" help:"what the morgue keeps of what was buried"`

	Expire Expire `rule:"expire" words:"never" default:"never" help:"payloads that no handler had so long after they were due go to the morgue, or are dropped"`

	Then Then `rule:"then" words:"none" default:"none" help:"queues that get payloads at their end; done gets the done payloads, dead gets the buried and expired payloads"`

	StuckAfter time.Duration `rule:"stuck_after" min:"0s" least:"1s" max:"8760h" default:"0s" help:"fails a call that has reported no progress for so long; 0s never does"`

	Tracked IDs `rule:"tracked" at:"run time" help:"ids whose runs the journal keeps, whatever its rule says"`

	Holds Holds `rule:"holds" at:"run time" help:"ids and prefixes that no handler gets"`

	MaxCrashes int `rule:"max_crashes" min:"0" least:"2" max:"1000000" default:"3" help:"buries a payload that kills its process so often; 0 never does; one crash proves nothing"`

	Push
}

// Push has the rules of pushes to a queue, by any program. The registry keeps them. Their zero
// value sets nothing.
type Push struct {
	PayloadBytes int `rule:"max_payload_size" min:"1B" max:"16MiB" default:"1MiB" json:"payload_bytes,omitempty" help:"bytes of a payload as stored; longer ones are refused"`

	Payloads int `rule:"max_id_payloads" min:"1" max:"1000000" default:"10000" json:"id_payloads,omitempty" help:"payloads that wait for an id; more are refused"`

	IDPayload int `rule:"max_id_size" min:"1B" max:"1GiB" default:"16MiB" json:"id_bytes,omitempty" help:"bytes of all payloads that wait for an id; more are refused"`

	Coalesce string `rule:"coalesce" oneof:"all,latest,once" default:"all" json:"coalesce,omitempty" help:"payloads that wait for an id: all of them, the latest, or once each push joins the first"`

	Debounce Debounce `rule:"debounce" words:"none" default:"none" json:"debounce,omitzero" help:"an id is due quiet after its last push, and most after its first one at the latest (ten times quiet)"`
}

// row is a rule of the table, or a part of a rule.
type row struct {
	key   string
	index []int
	tag   reflect.StructTag
	typ   reflect.Type
}

// rowsOf returns the fields of a struct that are rules, or parts of a rule.
func rowsOf(t reflect.Type) (all []row) {
	for _, field := range reflect.VisibleFields(t) {
		if key := field.Tag.Get("rule"); key != "" {
			all = append(all, row{key, field.Index, field.Tag, field.Type})
		}
	}
	return all
}

var (
	table     = rowsOf(reflect.TypeFor[Rules]())
	pushTable = rowsOf(reflect.TypeFor[Push]())
)

func (f *row) fieldOf(r *Rules) reflect.Value { return reflect.ValueOf(r).Elem().FieldByIndex(f.index) }

func findRow(all []row, key string) *row {
	if i := slices.IndexFunc(all, func(f row) bool { return f.key == key }); i >= 0 {
		return &all[i]
	}
	return nil
}

// ErrValue is the error of an invalid key or value.
var ErrValue = errors.New("rule")

// ValueError is the error of a key or of a part of it. It says what would be right. It is an
// [ErrValue].
type ValueError struct {
	Key    string // for example batch_size, limit.rate or retry_in[1]
	Reason string
	Other  string // the key of the rule that it contradicts, if any
}

func (e *ValueError) Error() string { return fmt.Sprintf("%v %s: %s", ErrValue, e.Key, e.Reason) }

// Is reports whether target is ErrValue.
func (e *ValueError) Is(target error) bool { return target == ErrValue }

func valueError(key, format string, args ...any) error {
	return &ValueError{Key: key, Reason: fmt.Sprintf(format, args...)}
}

// inPart turns the error of a part into an error of its rule.
func inPart(of string, err error) error {
	if part := (*ValueError)(nil); errors.As(err, &part) {
		return &ValueError{Key: of + part.Key, Reason: part.Reason}
	}
	return &ValueError{Key: of, Reason: err.Error()}
}

// Fixed returns the keys of a queue that do not change at run time, and why.
func Fixed() map[string]string {
	return map[string]string{
		"shards":  "the count says in which shard an id is, so jobs must move; use lowkiq-node queues reshard",
		"handler": "who does the work is started with the node: change its file and start it again",
	}
}

// Keys returns the rules that may change at run time, in the order of the table.
func Keys() []string { return keysOf(table) }

func keysOf(all []row) (names []string) {
	for _, f := range all {
		names = append(names, f.key)
	}
	return names
}

// FileKeys returns the keys that a configuration file may have.
func FileKeys() (names []string) {
	for _, f := range table {
		if f.tag.Get("at") == "" {
			names = append(names, f.key)
		}
	}
	return names
}

// Help returns the help of a rule, "" if there is no such rule.
func Help(key string) string {
	if f := findRow(table, key); f != nil {
		return f.tag.Get("help")
	}
	return ""
}

// Maximum bytes of a value.
const (
	maxValue = 64 << 10
	maxHolds = 512 << 10
)

// Set sets a rule to a value as configuration files write it, in JSON. After an error, which is an
// [ErrValue], the rule keeps its value.
func (r *Rules) Set(key string, value json.RawMessage) error {
	_, err := r.setValue(key, value)
	return err
}

// Compact returns the value of a rule as it is stored, or an [ErrValue].
func Compact(key string, value json.RawMessage) (json.RawMessage, error) {
	return new(Rules).setValue(key, value)
}

func (r *Rules) setValue(key string, value json.RawMessage) (json.RawMessage, error) {
	f := findRow(table, key)
	if f == nil {
		return nil, unknownKey(key)
	}
	var plain bytes.Buffer
	if err := json.Compact(&plain, value); len(value) == 0 {
		return nil, valueError(key, "there is no value")
	} else if err != nil {
		return nil, valueError(key, "the value is not JSON: %v", err)
	}
	bound := maxValue
	if key == "holds" {
		bound = maxHolds
	}
	if plain.Len() > bound {
		return nil, valueError(key, "the value has %d bytes, at most %d are allowed", plain.Len(), bound)
	}
	if err := f.readValue(f.fieldOf(r), plain.Bytes()); err != nil {
		return nil, inPart(key, err)
	}
	return plain.Bytes(), nil
}

func unknownKey(key string) error {
	if why := Fixed()[strings.SplitN(key, ".", 2)[0]]; why != "" {
		return fmt.Errorf("%w %s does not change at run time: %s", ErrValue, key, why)
	}
	if meant := suggest.NearestName(key, Keys(), min(3, len(key))); meant != "" {
		return fmt.Errorf("unknown %w %q, did you mean %q?", ErrValue, key, meant)
	}
	return fmt.Errorf("unknown %w %q; there are %s", ErrValue, key, strings.Join(Keys(), ", "))
}

// Unset sets a rule to its default.
func (r *Rules) Unset(key string) {
	if f := findRow(table, key); f != nil {
		f.fieldOf(r).SetZero()
	}
}

// WithDefaults returns the rules with the default of each field that is zero. The default of journal.keep depends on the shards.
func (r Rules) WithDefaults(shards int) Rules {
	for i := range table {
		table[i].setDefaults(table[i].fieldOf(&r))
	}
	r.Journal = r.Journal.WithDefaults(shards)
	return r
}

// WithDefaults returns the rules of pushes with the default of each field that is zero.
func (p Push) WithDefaults() Push {
	for i := range pushTable {
		pushTable[i].setDefaults(reflect.ValueOf(&p).Elem().FieldByIndex(pushTable[i].index))
	}
	return p
}

// Or returns these rules where they are set, and others elsewhere.
func (p Push) Or(others Push) Push {
	for _, f := range pushTable {
		if field := reflect.ValueOf(&p).Elem().FieldByIndex(f.index); field.IsZero() {
			field.Set(reflect.ValueOf(others).FieldByIndex(f.index))
		}
	}
	return p
}

// Missing returns the keys that others set and these rules do not.
func (p Push) Missing(others Push) (keys []string) {
	for _, f := range pushTable {
		if reflect.ValueOf(p).FieldByIndex(f.index).IsZero() && !reflect.ValueOf(others).FieldByIndex(f.index).IsZero() {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// Check returns an error if rules that a program gives are invalid. It reads each of them as if it
// came from a file.
func (r Rules) Check() error {
	var errs []error
	for i := range table {
		f := &table[i]
		if field := f.fieldOf(&r); !field.IsZero() {
			value, err := json.Marshal(f.shownValue(field))
			if err == nil {
				err = new(Rules).Set(f.key, value)
			}
			errs = append(errs, err)
		}
	}
	for _, err := range r.Contradictions() {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check returns an error if the rules of pushes are invalid.
func (p Push) Check() error { return Rules{Push: p}.Check() }

// Contradictions returns an error for each pair of contradicting rules. Its Key and Other name both
// rules.
func (r *Rules) Contradictions() (all []*ValueError) {
	if r.Priority > 0 && r.Scheduler == Seq {
		all = append(all, &ValueError{Key: "priority", Other: "scheduler",
			Reason: fmt.Sprintf("it is %d and needs scheduler lag, by which the oldest job is first; seq goes in turn", r.Priority)})
	}
	if r.PayloadBytes > 0 && r.IDPayload > 0 && r.PayloadBytes > r.IDPayload {
		all = append(all, &ValueError{Key: "max_payload_size", Other: "max_id_size",
			Reason: fmt.Sprintf("%s is more than max_id_size, %s, which is for all payloads of an id", bounds.SizeText(r.PayloadBytes), bounds.SizeText(r.IDPayload))})
	}
	return all
}

// FromBases returns the rules that people see. It leaves out a value that no file can have, such as
// a function of a program.
func FromBases(all map[string]Base) (r Rules) {
	for key, base := range all {
		if value, err := json.Marshal(base.Value); err == nil && base.From != "default" {
			_ = r.Set(key, value)
		}
	}
	return r
}

// Bases returns the rules as people see them with their sources, which are those of sources, else
// the program, else the default. It leaves out rules without a value.
func (r Rules) Bases(shards int, sources map[string]string) map[string]Base {
	if r.Journal != (Journal{}) { // a mapping without runs means all runs in a file, and failures in Go
		r.Journal.Runs = cmp.Or(r.Journal.Runs, JournalFailures)
	}
	all, full := map[string]Base{}, r.WithDefaults(shards)
	for i := range table {
		f := &table[i]
		given, field := f.fieldOf(&r), f.fieldOf(&full)
		if f.isScalar() && field.IsZero() && findRow(pushTable, f.key) == nil && !f.zeroIsDefault() {
			continue
		}
		base := Base{Value: f.shownValue(field), From: "default"}
		if source := sources[f.key]; source != "" {
			base.From = source
		} else if !given.IsZero() {
			base.From = "program"
		}
		base.Assumed = f.assumedParts(given, field)
		all[f.key] = base
	}
	return all
}
