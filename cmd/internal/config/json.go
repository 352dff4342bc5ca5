package config

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

const (
	maxJSONBytes = 64 << 10 // aliases may turn a short file into a long value
	maxJSONDepth = 100
)

// jsonWriter writes YAML as JSON.
type jsonWriter struct {
	*decoder
	key       string // for errors
	omitEmpty bool   // leave out keys without a value
	out       bytes.Buffer
}

// toJSON returns a value of the file as JSON, with its keys in the order of the file.
func (d *decoder) toJSON(n ast.Node, key string) (json.RawMessage, error) {
	return d.writeJSON(n, &jsonWriter{decoder: d, key: key})
}

// ruleToJSON returns the value of a rule as JSON. A part of a rule without a value is no setting, so
// it is left out.
func (d *decoder) ruleToJSON(n ast.Node, key string) (json.RawMessage, error) {
	return d.writeJSON(n, &jsonWriter{decoder: d, key: key, omitEmpty: true})
}

func (d *decoder) writeJSON(n ast.Node, w *jsonWriter) (json.RawMessage, error) {
	if err := w.writeValue(n, 0); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// writeValue appends a node as JSON. It bounds depth and bytes, because aliases can make a short file
// very long.
func (w *jsonWriter) writeValue(n ast.Node, depth int) error {
	n = w.resolveAlias(n)
	if depth > maxJSONDepth || w.out.Len() > maxJSONBytes {
		return w.originOf(n).newError(w.key, "too long or too deep: at most %d KiB and %d levels are allowed", maxJSONBytes>>10, maxJSONDepth)
	}
	switch n := n.(type) {
	case *ast.SequenceNode:
		w.out.WriteByte('[')
		for i, item := range n.Values {
			if i > 0 {
				w.out.WriteByte(',')
			}
			if err := w.writeValue(item, depth+1); err != nil {
				return err
			}
		}
		w.out.WriteByte(']')
		return nil
	case ast.MapNode:
		return w.writeObject(n, depth)
	case *ast.NullNode:
		w.out.WriteString("null")
		return nil
	case ast.ScalarNode:
		return w.writeScalar(n)
	}
	return w.originOf(n).newError(w.key, "%s is nothing that JSON has: quote it if you mean the text", n)
}

// writeObject appends a mapping together with the mappings that it merges. With omitEmpty it leaves
// out keys without a value.
func (w *jsonWriter) writeObject(n ast.MapNode, depth int) error {
	all, err := w.listPairs(n, w.key, depth)
	if err != nil {
		return err
	}
	w.out.WriteByte('{')
	first := true
	for _, p := range all {
		if w.omitEmpty && w.resolveAlias(p.value).Type() == ast.NullType {
			continue
		}
		if !first {
			w.out.WriteByte(',')
		}
		first = false
		w.writeText(p.key)
		w.out.WriteByte(':')
		if err := w.writeValue(p.value, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

// pair is a key of a mapping and its value.
type pair struct {
	key   string
	value ast.Node
}

// listPairs returns the keys and values of a mapping. Those of merged mappings come first, except the
// keys that the mapping has itself. In a list of merged mappings the first has precedence.
func (d *decoder) listPairs(n ast.MapNode, key string, depth int) (all []pair, err error) {
	var own []pair
	for it := n.MapRange(); it.Next(); {
		if !it.Key().IsMergeKey() {
			own = append(own, pair{it.Key().GetToken().Value, it.Value()})
			continue
		}
		if depth > maxJSONDepth {
			return nil, d.originOf(it.Key()).newError(key, "merges are nested too deeply")
		}
		value := d.resolveAlias(it.Value())
		sources := []ast.Node{value}
		if list, ok := value.(*ast.SequenceNode); ok {
			sources = list.Values
		}
		for _, source := range sources {
			if err := d.countMerge(source, key); err != nil {
				return nil, err
			}
			merged, ok := d.resolveAlias(source).(ast.MapNode)
			if !ok {
				return nil, d.noMapping(source, key)
			}
			below, err := d.listPairs(merged, key, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, slices.DeleteFunc(below, func(p pair) bool { return hasKey(all, p.key) })...)
		}
	}
	all = slices.DeleteFunc(all, func(p pair) bool { return hasKey(own, p.key) })
	return append(all, own...), nil
}

func hasKey(pairs []pair, key string) bool {
	return slices.ContainsFunc(pairs, func(p pair) bool { return p.key == key })
}

// writeScalar appends a text, a number or a boolean. Octal numbers, infinities and NaN are errors,
// because JSON has none.
func (w *jsonWriter) writeScalar(n ast.ScalarNode) error {
	value := n.GetValue()
	switch n.Type() {
	case ast.StringType, ast.LiteralType:
		text, _ := value.(string)
		w.writeText(text)
		return nil
	case ast.IntegerType, ast.FloatType:
		if octal.MatchString(n.GetToken().Value) && !strings.ContainsAny(n.GetToken().Value, ".eE") {
			return w.originOf(n).newError(w.key, "want a number or a text, got %s: is it octal? write a number without its leading zero, a text in quotes", n)
		}
		if f, ok := value.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return w.originOf(n).newError(w.key, "%s is no number of JSON", n)
		}
	case ast.BoolType:
	default:
		return w.originOf(n).newError(w.key, "%s is nothing that JSON has: quote it if you mean the text", n)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return w.originOf(n).newError(w.key, "%s is nothing that JSON has", n)
	}
	w.out.Write(text)
	return nil
}

// writeText writes a string as JSON without the escapes that HTML needs.
func (w *jsonWriter) writeText(s string) {
	e := json.NewEncoder(&w.out)
	e.SetEscapeHTML(false)
	if e.Encode(s) == nil { // a string always encodes
		w.out.Truncate(w.out.Len() - 1) // remove the line break
	}
}
