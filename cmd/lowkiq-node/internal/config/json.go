package config

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

const (
	mostJSON    = 64 << 10 // bytes: aliases may make much of little
	deepestJSON = 100
)

// jsonWriter writes what YAML says as JSON.
type jsonWriter struct {
	*decoder
	key string // for messages
	out bytes.Buffer
}

// json is a value of the file as JSON, its keys in the file's order.
func (d *decoder) json(n ast.Node, key string) (json.RawMessage, error) {
	w := &jsonWriter{decoder: d, key: key}
	if err := w.value(n, 0); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

func (w *jsonWriter) value(n ast.Node, depth int) error {
	n = w.resolve(n)
	if depth > deepestJSON || w.out.Len() > mostJSON {
		return w.at(n).fault(w.key, "too long or too deep: at most %d KiB and %d levels are allowed", mostJSON>>10, deepestJSON)
	}
	switch n := n.(type) {
	case *ast.SequenceNode:
		w.out.WriteByte('[')
		for i, item := range n.Values {
			if i > 0 {
				w.out.WriteByte(',')
			}
			if err := w.value(item, depth+1); err != nil {
				return err
			}
		}
		w.out.WriteByte(']')
		return nil
	case ast.MapNode:
		return w.object(n, depth)
	case *ast.NullNode:
		w.out.WriteString("null")
		return nil
	case ast.ScalarNode:
		return w.scalar(n)
	}
	return w.at(n).fault(w.key, "%s is nothing that JSON has: quote it if you mean the text", n)
}

func (w *jsonWriter) object(n ast.MapNode, depth int) error {
	w.out.WriteByte('{')
	first := true
	for it := n.MapRange(); it.Next(); {
		name := it.Key().GetToken().Value
		switch {
		case it.Key().IsMergeKey():
			return w.at(it.Key()).fault(w.key, "<< is not for what becomes JSON: write its keys out")
		case !first:
			w.out.WriteByte(',')
		}
		first = false
		w.text(name)
		w.out.WriteByte(':')
		if err := w.value(it.Value(), depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

func (w *jsonWriter) scalar(n ast.ScalarNode) error {
	value := n.GetValue()
	switch n.Type() {
	case ast.StringType, ast.LiteralType:
		text, _ := value.(string)
		w.text(text)
		return nil
	case ast.IntegerType, ast.FloatType:
		if octal.MatchString(n.GetToken().Value) && !strings.ContainsAny(n.GetToken().Value, ".eE") {
			return w.at(n).fault(w.key, "want a number or a text, got %s: is it octal? quote it if you mean the text", n)
		}
		if f, ok := value.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return w.at(n).fault(w.key, "%s is no number of JSON", n)
		}
	case ast.BoolType:
	default:
		return w.at(n).fault(w.key, "%s is nothing that JSON has: quote it if you mean the text", n)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return w.at(n).fault(w.key, "%s is nothing that JSON has", n)
	}
	w.out.Write(text)
	return nil
}

// text writes a string as JSON without the escapes that are for HTML.
func (w *jsonWriter) text(s string) {
	e := json.NewEncoder(&w.out)
	e.SetEscapeHTML(false)
	if e.Encode(s) == nil { // no string fails
		w.out.Truncate(w.out.Len() - 1) // the line's end
	}
}
