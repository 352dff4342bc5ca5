// Package bounds checks values against the tags of their fields.
//
//	min, max  the lowest and the highest number, duration or size; a bound as in 1MiB makes an int a size
//	least     the lowest value that is not 0, where 0 is allowed as well
//	oneof     the allowed words, with commas between them
//	text      describes a text for messages; it must not be empty, and not longer than max bytes
//
// [Read] reads configuration files, variables, flags, requests and forms. So each bound and its
// message exist once.
package bounds

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Read decodes JSON into a field. Its error says what would be right, and the field then keeps its
// value.
func Read(field reflect.Value, tag reflect.StructTag, value json.RawMessage) error {
	t := field.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	text, quoted := Unquote(value)
	v, ok := parseScalar(text, quoted, t, tag)
	if !ok || !isWithin(v, tag) {
		return fmt.Errorf("want %s, got %s", Want(t, tag), Got(value))
	}
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(t))
		field = field.Elem()
	}
	field.Set(v)
	return nil
}

// Default returns the value of the tag default, or zero if that is no value of the field's type.
func Default(t reflect.Type, tag reflect.StructTag) reflect.Value {
	if v, ok := parseBound("default", t, tag); ok {
		return v
	}
	return reflect.Zero(t)
}

// Unquote returns the text of a JSON string, or the value as it is written.
func Unquote(value json.RawMessage) (text string, quoted bool) {
	if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil {
		return text, true
	}
	return string(value), false
}

// Got returns a value as errors show it.
func Got(value json.RawMessage) string {
	if len(value) > 60 {
		return string(value[:60]) + "…"
	}
	return string(value)
}

// isDuration reports whether the type is time.Duration or is based on it.
func isDuration(t reflect.Type) bool { return t.Kind() == reflect.Int64 }

func isSize(tag reflect.StructTag) bool { return strings.HasSuffix(tag.Get("max"), "iB") }

// parseScalar parses a scalar. quoted reports whether it is a JSON string.
func parseScalar(text string, quoted bool, t reflect.Type, tag reflect.StructTag) (reflect.Value, bool) {
	v := reflect.New(t).Elem()
	if reader, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok && !isDuration(t) {
		return v, quoted && reader.UnmarshalText([]byte(text)) == nil
	}
	var err error
	switch {
	case isDuration(t):
		var d time.Duration
		d, err = time.ParseDuration(text)
		v.SetInt(int64(d))
		return v, err == nil && (quoted || text == "0")
	case t.Kind() == reflect.Int && isSize(tag):
		n := Size(text)
		v.SetInt(n)
		return v, quoted && n > 0
	case t.Kind() == reflect.String:
		v.SetString(text)
		return v, quoted
	case t.Kind() == reflect.Int:
		var n int
		n, err = strconv.Atoi(text)
		v.SetInt(int64(n))
	case t.Kind() == reflect.Float64:
		var x float64
		x, err = strconv.ParseFloat(text, 64)
		v.SetFloat(x)
	case t.Kind() == reflect.Bool:
		var x bool
		x, err = strconv.ParseBool(text)
		v.SetBool(x)
	default:
		err = errors.ErrUnsupported
	}
	return v, err == nil && !quoted
}

func parseBound(name string, t reflect.Type, tag reflect.StructTag) (reflect.Value, bool) {
	text, ok := tag.Lookup(name)
	if !ok {
		return reflect.Value{}, false
	}
	return parseScalar(text, isDuration(t) || t.Kind() == reflect.String || isSize(tag), t, tag)
}

func isWithin(v reflect.Value, tag reflect.StructTag) bool {
	if v.Kind() == reflect.String {
		words, longest := tag.Get("oneof"), math.MaxInt
		if text := tag.Get("max"); text != "" {
			longest, _ = strconv.Atoi(text)
		}
		return (words == "" || slices.Contains(strings.Split(words, ","), v.String())) && (tag.Get("text") == "" || v.String() != "") && v.Len() <= longest
	}
	low, hasLow := parseBound("min", v.Type(), tag)
	high, hasHigh := parseBound("max", v.Type(), tag)
	switch v.Kind() {
	case reflect.Float64:
		return !math.IsNaN(v.Float()) && (!hasLow || v.Float() >= low.Float()) && (!hasHigh || v.Float() <= high.Float())
	case reflect.Int, reflect.Int64:
		least, hasLeast := parseBound("least", v.Type(), tag)
		return (!hasLow || v.Int() >= low.Int()) && (!hasHigh || v.Int() <= high.Int()) && (!hasLeast || v.Int() == 0 || v.Int() >= least.Int())
	}
	return true
}

// Want describes the allowed values.
func Want(t reflect.Type, tag reflect.StructTag) string {
	kind, example := "", ""
	switch {
	case tag.Get("oneof") != "":
		return strings.ReplaceAll(tag.Get("oneof"), ",", " or ")
	case tag.Get("text") != "":
		return tag.Get("text")
	case isDuration(t):
		kind, example = "a duration", `, as in "30s"`
	case isSize(tag):
		kind, example = "a size", `, as in "1MiB"`
	case t.Kind() == reflect.Int:
		kind = "a whole number"
	case t.Kind() == reflect.Float64:
		kind = "a number"
	case t.Kind() == reflect.Bool:
		kind = "true or false"
	default:
		kind = "a string"
	}
	if Range(tag) != "" {
		kind += ", " + Range(tag)
	}
	return kind + example
}

// Range returns the text of the bounds, for example 1 to 1000, or "" without bounds.
func Range(tag reflect.StructTag) string {
	low, high := tag.Get("min"), tag.Get("max")
	if low == "" {
		return ""
	}
	if least := tag.Get("least"); least != "" {
		low += " or " + least
	}
	return low + " to " + high
}

// Show returns a field as people write it.
func Show(v reflect.Value, tag reflect.StructTag) any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if writer, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, _ := writer.MarshalText() // it never fails for a rule
		return string(text)
	}
	switch {
	case isDuration(v.Type()):
		return Duration(time.Duration(v.Int()))
	case isSize(tag):
		return SizeText(int(v.Int()))
	}
	return v.Interface()
}

// Duration returns the text of a duration without zero units at its end.
func Duration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// sizes has the units of sizes.
var sizes = []struct {
	bytes int
	name  string
}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}}

// Size returns the bytes of a text such as 64MiB, or 0 if it is not a size.
func Size(text string) int64 {
	for _, unit := range sizes {
		if number, ok := strings.CutSuffix(text, unit.name); ok {
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return 0
			}
			return int64(n) * int64(unit.bytes)
		}
	}
	return 0
}

// SizeText returns the text of a size.
func SizeText(n int) string {
	for _, unit := range sizes {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return strconv.Itoa(n/unit.bytes) + unit.name
		}
	}
	return strconv.Itoa(n) // negative
}
