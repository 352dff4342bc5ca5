package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// decoder writes YAML nodes into the values of the schema. A general decoder would name Go types in its errors. decoder
// says "want a whole number" and names the place.
type decoder struct {
	cfg     *Config
	name    string // the name of the source
	outside bool   // the source is not the file, so its tokens have no place
	anchors map[string]ast.Node
	merges  int // the nesting of merges, bounded because an anchor may name itself
	merged  int // all merges, bounded because lists of merges multiply
}

const (
	maxMerges = 16
	maxMerged = 1000
)

// octal matches a number that some readers of YAML take as octal and others as decimal.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]`)

func (d *decoder) originOf(n ast.Node) origin {
	if d.outside {
		return origin{name: d.name}
	}
	return origin{d.name, n.GetToken()}
}

// decodeNode writes a node into v, the value of key.
func (d *decoder) decodeNode(n ast.Node, v reflect.Value, key string, tag reflect.StructTag) error {
	n = d.resolveAlias(n)
	d.cfg.origins[key] = d.originOf(n)
	if n.Type() == ast.NullType {
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		text, err := d.toJSON(n, key)
		if err == nil {
			v.SetBytes(text)
		}
		return err
	case v.Kind() == reflect.Struct, v.Kind() == reflect.Map:
		return d.decodeMapping(n, v, key)
	case v.Kind() == reflect.Slice:
		return d.decodeList(n, v, key, tag)
	}
	return d.decodeScalar(n, v, key, tag)
}

// resolveAlias follows anchors and aliases.
func (d *decoder) resolveAlias(n ast.Node) ast.Node {
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

// decodeMapping reads a mapping into a struct or a map. Keys that the mapping does not have keep their values.
func (d *decoder) decodeMapping(n ast.Node, v reflect.Value, key string) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return d.noMapping(n, key)
	}
	if v.Kind() == reflect.Map && v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	// Merged keys come first, so that the mapping's own keys win.
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			if err := d.decodeMerge(it.Value(), v, key); err != nil {
				return err
			}
		}
	}
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			continue
		}
		if err := d.decodeEntry(it.Key(), it.Value(), v, key); err != nil {
			return err
		}
	}
	return nil
}

// noMapping returns the error of a node in the place of a mapping.
func (d *decoder) noMapping(n ast.Node, key string) error {
	if n.Type() == ast.SequenceType {
		return d.originOf(n).newError(key, "it is a list; it must be keys and values, as in {a: 1, b: 2}")
	}
	return d.originOf(n).newError(key, "want keys and values, got %s", n)
}

// decodeMerge reads the mapping of a merge key, or its list of mappings, where the first has precedence. It bounds the nesting
// of merges, because an alias may lead back to the merge itself.
func (d *decoder) decodeMerge(n ast.Node, v reflect.Value, key string) error {
	if err := d.countMerge(n, key); err != nil {
		return err
	}
	if d.merges == maxMerges {
		return d.originOf(n).newError(key, "merges are nested too deeply")
	}
	d.merges++
	defer func() { d.merges-- }()
	n = d.resolveAlias(n)
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.decodeMapping(n, v, key)
	}
	for _, one := range slices.Backward(list.Values) {
		if err := d.decodeMerge(one, v, key); err != nil {
			return err
		}
	}
	return nil
}

// countMerge bounds the number of merges.
func (d *decoder) countMerge(n ast.Node, key string) error {
	if d.merged++; d.merged > maxMerged {
		return d.originOf(n).newError(key, "more than %d merges", maxMerged)
	}
	return nil
}

// decodeEntry reads a key and its value. In a map, the value of a known name is extended and not replaced. An unknown
// key is an error that suggests a similar key.
func (d *decoder) decodeEntry(k ast.MapKeyNode, value ast.Node, v reflect.Value, key string) error {
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
		err := d.decodeNode(value, into, path, "")
		v.SetMapIndex(reflect.ValueOf(word), item)
		d.cfg.origins[path] = d.originOf(k)
		return err
	}
	known := fieldsByKey(v.Type())
	field, ok := known[word]
	if !ok {
		all := slices.Collect(maps.Keys(known))
		if q, queue := v.Addr().Interface().(*Queue); queue {
			if all = append(all, rules.FileKeys()...); slices.Contains(all, word) {
				return d.decodeRule(q, value, path, word)
			}
		}
		slices.Sort(all)
		return d.originOf(k).newError(key, "unknown key %q%s", word, suggestName(word, all))
	}
	v.FieldByIndex(field.Index).SetZero() // a merge is shallow: its value is replaced
	return d.decodeNode(value, v.FieldByIndex(field.Index), path, field.Tag)
}

// decodeList replaces a list. tag has the bounds of its elements. An element without a value is an error.
func (d *decoder) decodeList(n ast.Node, v reflect.Value, key string, tag reflect.StructTag) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.originOf(n).newError(key, "want a list, as in [a, b], got %s", n)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		place := fmt.Sprintf("%s[%d]", key, i)
		if d.resolveAlias(item).Type() == ast.NullType { // it would be a zero value: no delay, an empty argument
			return d.originOf(item).newError(place, "want %s, got nothing", bounds.Want(v.Type().Elem(), tag))
		}
		if err := d.decodeNode(item, v.Index(i), place, tag); err != nil {
			return err
		}
	}
	return nil
}

// decodeRule sets a rule of a queue to the value of a node. A null node stands for the default.
func (d *decoder) decodeRule(q *Queue, n ast.Node, key, rule string) error {
	n = d.resolveAlias(n)
	d.cfg.origins[key] = d.originOf(n)
	q.Unset(rule)
	if n.Type() == ast.NullType {
		return nil
	}
	value, err := d.ruleToJSON(n, key)
	if err != nil {
		return err
	}
	if m, ok := n.(ast.MapNode); ok && string(value) == "{}" && m.MapRange().Next() {
		return nil // all of its parts are empty
	}
	d.recordOrigins(n, key, 0)
	if wrong := (*rules.ValueError)(nil); errors.As(q.Set(rule, value), &wrong) {
		place := strings.TrimSuffix(key, rule) + wrong.Key
		return d.cfg.findOrigin(place).newError(place, "%s", wrong.Reason)
	}
	return nil
}

// recordOrigins records the places of the parts of a value, for errors.
func (d *decoder) recordOrigins(n ast.Node, key string, depth int) {
	note := func(part ast.Node, key string) {
		d.cfg.origins[key] = d.originOf(d.resolveAlias(part))
		d.recordOrigins(d.resolveAlias(part), key, depth+1)
	}
	switch n := n.(type) {
	case *ast.SequenceNode:
		for i, item := range n.Values {
			note(item, fmt.Sprintf("%s[%d]", key, i))
		}
	case ast.MapNode:
		all, _ := d.listPairs(n, key, depth)
		for _, p := range all {
			note(p.value, key+"."+p.key)
		}
	}
}

// decodeScalar reads a node that is neither a mapping nor a list.
func (d *decoder) decodeScalar(n ast.Node, v reflect.Value, key string, tag reflect.StructTag) error {
	if _, ok := n.(ast.ScalarNode); !ok {
		return d.originOf(n).newError(key, "want %s, got a %s", bounds.Want(v.Type(), tag), strings.ToLower(n.Type().YAMLName()))
	}
	value, err := d.toJSON(n, key)
	if err != nil {
		return err
	}
	if err := bounds.Read(v, tag, value); err != nil {
		hint := ""
		if v.Kind() == reflect.String && value[0] != '"' && tag.Get("oneof") == "" {
			hint = "; quote it if you mean the text"
		}
		return d.originOf(n).newError(key, "%s%s", err.Error(), hint)
	}
	return nil
}
