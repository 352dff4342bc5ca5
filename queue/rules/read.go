package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
)

// custom is a rule with its own way of reading and showing, because it is neither a scalar nor only
// a mapping.
type custom interface {
	readJSON(value json.RawMessage) error
	shownValue() any
}

func (f *row) asCustom(field reflect.Value) (custom, bool) {
	w, ok := field.Addr().Interface().(custom)
	return w, ok
}

func (f *row) isScalar() bool { return f.typ.Kind() != reflect.Struct && f.typ.Kind() != reflect.Slice }

// zeroIsDefault reports whether the default of the rule is 0.
func (f *row) zeroIsDefault() bool { return slices.Contains([]string{"0", "0s"}, f.tag.Get("default")) }

// zeroIsNegative reports whether a negative field stands for 0; see [Rules].
func (f *row) zeroIsNegative() bool {
	return slices.Contains([]string{"0", "0s"}, f.tag.Get("min")) && f.tag.Get("rule") != "" && f.tag.Get("default") != "" && !f.zeroIsDefault()
}

// readValue decodes a value into the field of a rule.
func (f *row) readValue(field reflect.Value, value json.RawMessage) error {
	if w, ok := f.asCustom(field); ok {
		return w.readJSON(value)
	}
	if f.typ.Kind() == reflect.Struct {
		return f.readParts(field, value)
	}
	err := bounds.Read(field, f.tag, value)
	if err == nil && f.zeroIsNegative() && field.IsZero() {
		field.SetInt(-1)
	}
	return err
}

// shownValue returns the value of a field as configuration files write it.
func (f *row) shownValue(field reflect.Value) any {
	if w, ok := f.asCustom(field); ok {
		return w.shownValue()
	}
	if f.typ.Kind() == reflect.Struct {
		return f.showParts(field)
	}
	if f.zeroIsNegative() && field.Int() < 0 {
		return bounds.Show(reflect.Zero(f.typ), f.tag)
	}
	return bounds.Show(field, f.tag)
}

// setDefaults sets a field that is zero, or its parts, to their defaults.
func (f *row) setDefaults(field reflect.Value) {
	if field.IsZero() && f.isScalar() {
		field.Set(bounds.Default(f.typ, f.tag))
	}
	if parts, ok := field.Addr().Interface().(interface{ setDefaults() }); ok {
		parts.setDefaults()
	}
}

// assumedParts returns the parts of a value that were not given and follow from the others.
func (f *row) assumedParts(given, full reflect.Value) (names []string) {
	if given.IsZero() {
		return nil
	}
	parts, _ := f.shownValue(full).(map[string]any)
	said, _ := f.shownValue(given).(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if _, there := said[name]; !there {
			names = append(names, name)
		}
	}
	return names
}

// describeForms describes the ways to write a rule with parts.
func (f *row) describeForms() string {
	mapping := "{" + strings.Join(keysOf(rowsOf(f.typ)), ", ") + "}"
	if words := f.tag.Get("words"); words != "" {
		return strings.ReplaceAll(words, ",", ", ") + " or " + mapping
	}
	return mapping
}

// readParts reads a mapping, each part by the tags of its field, or a word that stands for all of them.
func (f *row) readParts(field reflect.Value, value json.RawMessage) error {
	fresh := reflect.New(f.typ)
	text, quoted := bounds.Unquote(value)
	if quoted && slices.Contains(strings.Split(f.tag.Get("words"), ","), text) {
		if by, ok := fresh.Interface().(interface{ setWord(word string) }); ok {
			by.setWord(text)
		}
		field.Set(fresh.Elem())
		return nil
	}
	var in map[string]json.RawMessage
	if json.Unmarshal(value, &in) != nil || len(in) == 0 {
		return fmt.Errorf("want %s, got %s", f.describeForms(), bounds.Got(value))
	}
	parts := rowsOf(f.typ)
	for _, name := range slices.Sorted(maps.Keys(in)) {
		part := findRow(parts, name)
		if part == nil {
			if meant := suggest.NearestName(name, keysOf(parts), len(name)/2+1); meant != "" {
				return valueError("."+name, "unknown key, did you mean %q?", meant)
			}
			return valueError("."+name, "unknown key; want %s", f.describeForms())
		}
		if err := bounds.Read(fresh.Elem().FieldByIndex(part.index), part.tag, in[name]); err != nil {
			return inPart("."+name, err)
		}
	}
	if by, ok := fresh.Interface().(interface{ checkParts() error }); ok {
		if err := by.checkParts(); err != nil {
			return err
		}
	}
	field.Set(fresh.Elem())
	return nil
}

// showParts returns the parts that are set, or the word for a rule without parts.
func (f *row) showParts(field reflect.Value) any {
	if by, ok := field.Addr().Interface().(interface{ asWord() string }); ok && by.asWord() != "" {
		return by.asWord()
	}
	if field.IsZero() {
		word, _, _ := strings.Cut(f.tag.Get("words"), ",")
		return word
	}
	shown := map[string]any{}
	for _, part := range rowsOf(f.typ) {
		if v := field.FieldByIndex(part.index); !v.IsZero() {
			shown[part.key] = bounds.Show(v, part.tag)
		}
	}
	return shown
}
