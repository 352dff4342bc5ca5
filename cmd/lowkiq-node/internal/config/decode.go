package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// decoder writes YAML nodes into the schema's values. It exists because a message
// should say "want a whole number" and where, not name a Go type.
type decoder struct {
	cfg     *Config
	name    string // of the source
	outside bool   // the source is not the file: tokens have no place in it
	anchors map[string]ast.Node
	merges  int // nested ones, being decoded: an anchor may name itself
}

const maxMerges = 16

// The ways to write values that have more than one.
const (
	retryForms   = "{base, power, jitter} or a list of durations"
	journalForms = "failures, all, none or {runs, keep, for}"
)

// words are those that stand for a mapping without keys.
var words = map[reflect.Type]struct{ word, forms string }{
	reflect.TypeFor[Morgue]():   {"all", "all or {keep, for}"},
	reflect.TypeFor[Limit]():    {"none", "none or {concurrency, rate, burst}"},
	reflect.TypeFor[Groups]():   {"none", "none or {by, concurrency, rate, burst}"},
	reflect.TypeFor[Debounce](): {"none", "none or {quiet, most}"},
	reflect.TypeFor[Expire]():   {"never", "never or {after, to}"},
}

// octal is a number that is eight to some readers of YAML and ten to others.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]`)

func (d *decoder) at(n ast.Node) origin {
	if d.outside {
		return origin{name: d.name}
	}
	return origin{d.name, n.GetToken()}
}

// decode writes node into v, the value of key.
func (d *decoder) decode(n ast.Node, v reflect.Value, key string, tag reflect.StructTag) error {
	n = d.resolve(n)
	d.cfg.origins[key] = d.at(n)
	if n.Type() == ast.NullType {
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Type() == reflect.TypeFor[RetryIn]() && n.Type() == ast.SequenceType:
		if len(n.(*ast.SequenceNode).Values) == 0 {
			return d.at(n).fault(key, "want %s, got an empty list", retryForms)
		}
		return d.list(n, v.FieldByName("Delays"), key, `min:"0s" max:"8760h"`)
	case v.Type() == reflect.TypeFor[Journal]() && n.Type() == ast.StringType:
		runs, _ := v.Type().FieldByName("Runs")
		if err := d.decode(n, v.FieldByName("Runs"), key, runs.Tag); err != nil {
			return d.at(n).fault(key, "want %s, got %s", journalForms, n)
		}
		return nil
	case words[v.Type()].word != "" && n.Type() == ast.StringType && n.GetToken().Value == words[v.Type()].word:
		return nil
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		text, err := d.json(n, key)
		if err == nil {
			v.SetBytes(text)
		}
		return err
	case v.Kind() == reflect.Struct, v.Kind() == reflect.Map:
		return d.mapping(n, v, key)
	case v.Kind() == reflect.Slice:
		return d.list(n, v, key, tag)
	}
	scalar, ok := n.(ast.ScalarNode)
	if !ok {
		return d.at(n).fault(key, "want %s, got a %s", want(v, tag), strings.ToLower(n.Type().YAMLName()))
	}
	if v.Kind() == reflect.String && n.Type() != ast.StringType && n.Type() != ast.LiteralType {
		hint := ""
		if tag.Get("oneof") == "" && tag.Get("text") == "" {
			hint = "; quote it if you mean the text"
		}
		return d.at(n).fault(key, "want %s, got %s%s", want(v, tag), n, hint)
	}
	if n.Type() == ast.StringType && (v.Kind() == reflect.Int || v.Kind() == reflect.Float64 || v.Kind() == reflect.Bool) {
		return d.at(n).fault(key, "want %s, got %s", want(v, tag), n)
	}
	if v.Kind() == reflect.Int && octal.MatchString(n.GetToken().Value) {
		return d.at(n).fault(key, "want %s, got %s: is it octal?", want(v, tag), n)
	}
	return d.scalar(fmt.Sprint(scalar.GetValue()), v, key, tag, d.at(n))
}

// resolve follows anchors and aliases.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range maxMerges {
		switch node := n.(type) {
		case *ast.AnchorNode:
			n = node.Value
			if d.anchors != nil {
				d.anchors[node.Name.GetToken().Value] = n
			}
		case *ast.AliasNode:
			target, ok := d.anchors[node.Value.GetToken().Value]
			if !ok {
				return n
			}
			n = target
		default:
			return n
		}
	}
	return n
}

func (d *decoder) mapping(n ast.Node, v reflect.Value, key string) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		kind := "keys and values"
		if v.Type() == reflect.TypeFor[RetryIn]() {
			kind = retryForms
		}
		if v.Type() == reflect.TypeFor[Journal]() {
			kind = journalForms
		}
		if of, ok := words[v.Type()]; ok {
			kind = of.forms
		}
		return d.at(n).fault(key, "want %s, got %s", kind, n)
	}
	if of, ok := words[v.Type()]; ok && !m.MapRange().Next() { // it would say nothing, as the word does
		return d.at(n).fault(key, "want %s, got {}", of.forms)
	}
	if v.Kind() == reflect.Map && v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	// What is merged in comes first: the mapping's own keys win.
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			if err := d.merge(it.Value(), v, key); err != nil {
				return err
			}
		}
	}
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			continue
		}
		if err := d.entry(it.Key(), it.Value(), v, key); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) merge(n ast.Node, v reflect.Value, key string) error {
	if d.merges == maxMerges {
		return d.at(n).fault(key, "merges are nested too deeply")
	}
	d.merges++
	defer func() { d.merges-- }()
	return d.mapping(d.resolve(n), v, key)
}

func (d *decoder) entry(k ast.MapKeyNode, value ast.Node, v reflect.Value, key string) error {
	word := k.GetToken().Value
	path := strings.TrimPrefix(key+"."+word, ".")
	if v.Kind() == reflect.Map {
		item := reflect.New(v.Type().Elem()).Elem()
		if old := v.MapIndex(reflect.ValueOf(word)); old.IsValid() {
			item.Set(old)
		} else if item.Kind() == reflect.Pointer {
			item.Set(reflect.New(item.Type().Elem()))
		}
		into := item
		if item.Kind() == reflect.Pointer {
			into = item.Elem()
		}
		err := d.decode(value, into, path, "")
		v.SetMapIndex(reflect.ValueOf(word), item)
		d.cfg.origins[path] = d.at(k)
		return err
	}
	known := fields(v.Type())
	field, ok := known[word]
	if !ok {
		return d.at(k).fault(key, "unknown key %q%s", word, suggestion(word, slices.Sorted(maps.Keys(known))))
	}
	v.FieldByIndex(field.Index).SetZero() // a merge is shallow: what it brought is replaced
	return d.decode(value, v.FieldByIndex(field.Index), path, field.Tag)
}

func (d *decoder) list(n ast.Node, v reflect.Value, key string, tag reflect.StructTag) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.at(n).fault(key, "want a list, as in [a, b], got %s", n)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		place := fmt.Sprintf("%s[%d]", key, i)
		if d.resolve(item).Type() == ast.NullType { // would be zero: a delay of none, an empty argument
			return d.at(item).fault(place, "want %s, got nothing", want(v.Index(i), tag))
		}
		if err := d.decode(item, v.Index(i), place, tag); err != nil {
			return err
		}
	}
	return nil
}

// scalar writes text into v and checks it against the tag.
func (d *decoder) scalar(text string, v reflect.Value, key string, tag reflect.StructTag, from origin) error {
	d.cfg.origins[key] = from
	value, ok := parse(text, v.Type())
	if !ok || !within(value, v.Type(), tag) {
		if text == "" {
			text = `""`
		}
		return from.fault(key, "want %s, got %s", want(v, tag), text)
	}
	v.Set(value)
	return nil
}

// parse reads a scalar of the schema's types.
func parse(text string, t reflect.Type) (reflect.Value, bool) {
	v := reflect.New(t).Elem()
	var err error
	switch {
	case t == reflect.TypeFor[time.Duration]():
		var x time.Duration
		x, err = time.ParseDuration(text)
		v.SetInt(int64(x))
	case t.Kind() == reflect.Int:
		var x int
		x, err = strconv.Atoi(text)
		v.SetInt(int64(x))
	case t.Kind() == reflect.Float64:
		var x float64
		x, err = strconv.ParseFloat(text, 64)
		v.SetFloat(x)
	case t.Kind() == reflect.Bool:
		var x bool
		x, err = strconv.ParseBool(text)
		v.SetBool(x)
	case t.Kind() == reflect.String:
		v.SetString(text)
	}
	return v, err == nil
}

// within checks a value against the tags min, max and oneof; what has a tag text is not empty.
func within(v reflect.Value, t reflect.Type, tag reflect.StructTag) bool {
	if tag.Get("text") != "" && v.String() == "" {
		return false
	}
	if words := tag.Get("oneof"); words != "" && !slices.Contains(strings.Split(words, ","), v.String()) {
		return false
	}
	bound := func(name string) (reflect.Value, bool) {
		text, ok := tag.Lookup(name)
		if !ok {
			return v, false
		}
		return parse(text, t)
	}
	low, hasLow := bound("min")
	high, hasHigh := bound("max")
	if t.Kind() == reflect.Float64 {
		return !(hasLow && !(v.Float() >= low.Float()) || hasHigh && !(v.Float() <= high.Float()))
	}
	return !(hasLow && v.Int() < low.Int() || hasHigh && v.Int() > high.Int())
}

// want says what would be right.
func want(v reflect.Value, tag reflect.StructTag) string {
	kind := ""
	switch {
	case tag.Get("oneof") != "":
		return strings.ReplaceAll(tag.Get("oneof"), ",", " or ")
	case tag.Get("text") != "":
		return tag.Get("text")
	case v.Type() == reflect.TypeFor[time.Duration]():
		kind = "a duration such as 30s or 5m"
	case v.Kind() == reflect.Int:
		kind = "a whole number"
	case v.Kind() == reflect.Float64:
		kind = "a number"
	case v.Kind() == reflect.Bool:
		kind = "true or false"
	default:
		kind = "a string"
	}
	if low, high := tag.Get("min"), tag.Get("max"); low != "" {
		kind += ", " + low + " to " + high
	}
	return kind
}
