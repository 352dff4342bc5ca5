package recurring

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
)

// Field describes a field of a [Spec] for files, the API, flags and forms. Its name, its help and
// its allowed words are tags of the Spec.
type Field struct {
	Name        string
	Placeholder string   // placeholder of the value, for people
	Example     string   // example of a value
	Help        string   // one line
	Words       []string // allowed values; nil means any
	Range       string   // of a value that may not be 0, as in 1 to 1000; "" if it may
	Type        reflect.Type
	index       int
}

// Fields returns the fields of a Spec in their order.
func Fields() (all []Field) {
	for f := range reflect.TypeFor[Spec]().Fields() {
		field := Field{Placeholder: f.Tag.Get("placeholder"), Example: f.Tag.Get("example"), Help: f.Tag.Get("help"), Type: f.Type, index: f.Index[0]}
		field.Range = bounds.Range(f.Tag)
		field.Name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		if words := f.Tag.Get("oneof"); words != "" {
			field.Words = strings.Split(words, ",")
		}
		all = append(all, field)
	}
	return all
}

// IsText reports whether the field has a text form. Only headers have none.
func (f Field) IsText() bool { return f.Type.Kind() != reflect.Map }

// Text returns the value of the field in a Spec, "" if it is not set.
func (f Field) Text(s *Spec) string {
	switch v := reflect.ValueOf(s).Elem().Field(f.index).Interface().(type) {
	case Duration:
		if v != 0 {
			return v.String()
		}
	case int:
		if v != 0 {
			return strconv.Itoa(v)
		}
	case json.RawMessage:
		return string(v)
	case string:
		return v
	case Missed:
		return string(v)
	}
	return ""
}

// SetText sets the field of a Spec. An empty text unsets it.
func (f Field) SetText(s *Spec, text string) error {
	to := reflect.ValueOf(s).Elem().Field(f.index)
	to.SetZero()
	if text == "" {
		return nil
	}
	switch v := to.Addr().Interface().(type) {
	case *Duration:
		if err := v.UnmarshalText([]byte(text)); err != nil {
			return fieldError("%s: %w", f.Name, err)
		}
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fieldError("%s: must be a whole number, not %.40q", f.Name, text)
		}
		*v = n
	case *json.RawMessage:
		*v = json.RawMessage(text)
	default:
		to.SetString(text)
	}
	return nil
}

// Take copies the named fields from another Spec. A cron replaces an interval and the reverse, and
// a backlog is dropped with its rule for missed ticks.
//
// It first clears the fields that are replaced and then copies the named fields. So named fields
// that contradict each other are all set, and [Spec.Check] refuses them.
func (s *Spec) Take(from *Spec, names ...string) {
	if from.Cron != "" && slices.Contains(names, "cron") {
		s.Every, s.Offset = 0, 0
	}
	if from.Every != 0 && slices.Contains(names, "every") {
		s.Cron, s.Zone = "", ""
	}
	if from.Missed != All && slices.Contains(names, "missed") {
		s.Backlog = 0
	}
	for _, f := range Fields() {
		if slices.Contains(names, f.Name) {
			reflect.ValueOf(s).Elem().Field(f.index).Set(reflect.ValueOf(from).Elem().Field(f.index))
		}
	}
}
