package web

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// schemas checks values against the part of JSON Schema that openapi.yaml uses. A word it
// does not know is a fault of the schema, so that none is passed over.
type schemas struct{ root map[string]any }

// annotations say nothing of what is valid.
var annotations = []string{"description", "default", "example", "contentMediaType", "contentSchema"}

// at follows a reference like #/components/schemas/Job.
func (s schemas) at(ref string) (any, error) {
	var node any = s.root
	for _, word := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		object, ok := node.(map[string]any)
		if !ok || object[word] == nil {
			return nil, fmt.Errorf("%s: nothing is there", ref)
		}
		node = object[word]
	}
	return node, nil
}

// resolve replaces a reference by what it refers to.
func (s schemas) resolve(node any) (map[string]any, error) {
	object, ok := node.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("got %T, want an object", node)
	}
	ref, ok := object["$ref"].(string)
	if !ok {
		return object, nil
	}
	target, err := s.at(ref)
	if err != nil {
		return nil, err
	}
	return s.resolve(target)
}

// check says what is wrong with a value; where is its place.
func (s schemas) check(node, value any, where string) error {
	schema, err := s.resolve(node)
	if err != nil {
		return fmt.Errorf("%s: schema: %w", where, err)
	}
	for _, word := range slices.Sorted(maps.Keys(schema)) {
		if slices.Contains(annotations, word) {
			continue
		}
		rule := rulesOf()[word]
		if rule == nil {
			return fmt.Errorf("%s: schema: unknown word %q", where, word)
		}
		if err := rule(s, schema, schema[word], value, where); err != nil {
			return err
		}
	}
	return nil
}

type rule = func(s schemas, schema map[string]any, limit, value any, where string) error

// rulesOf are the words that are understood.
func rulesOf() map[string]rule {
	return map[string]rule{
		"type": ruleType, "enum": ruleEnum, "const": ruleEnum, "minimum": ruleBound(1, "least"), "maximum": ruleBound(-1, "most"),
		"required": ruleRequired, "properties": ruleFields, "additionalProperties": ruleFields,
		"items": ruleItems, "anyOf": ruleAnyOf, "format": ruleFormat, "contentEncoding": ruleEncoding,
	}
}

func ruleType(_ schemas, _ map[string]any, limit, value any, where string) error {
	allowed, ok := limit.([]any)
	if !ok {
		allowed = []any{limit}
	}
	got := typeOf(value)
	for _, one := range allowed {
		if one == got || one == "number" && got == "integer" {
			return nil
		}
	}
	return fmt.Errorf("%s: got %s, want %v", where, got, limit)
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		if f := number(v); f == float64(int64(f)) {
			return "integer"
		}
		return "number"
	}
}

func number(value any) float64 {
	v := reflect.ValueOf(value)
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

func same(x, y any) bool { return fmt.Sprint(x) == fmt.Sprint(y) && typeOf(x) == typeOf(y) }

func ruleEnum(_ schemas, _ map[string]any, limit, value any, where string) error {
	list, ok := limit.([]any)
	if !ok {
		list = []any{limit} // const
	}
	if !slices.ContainsFunc(list, func(one any) bool { return same(one, value) }) {
		return fmt.Errorf("%s: got %v, want one of %v", where, value, list)
	}
	return nil
}

func ruleBound(sign float64, end string) rule {
	return func(_ schemas, _ map[string]any, limit, value any, where string) error {
		if sign*number(value) < sign*number(limit) {
			return fmt.Errorf("%s: got %v, want at %s %v", where, value, end, limit)
		}
		return nil
	}
}

// ruleFormat knows the formats without which a program would take an int32 or a float32.
func ruleFormat(_ schemas, _ map[string]any, limit, value any, where string) error {
	kinds := map[any][]string{"int64": {"integer"}, "double": {"integer", "number", "null"}}[limit]
	if !slices.Contains(kinds, typeOf(value)) {
		return fmt.Errorf("%s: got %s, want the format %v", where, typeOf(value), limit)
	}
	return nil
}

func ruleEncoding(_ schemas, _ map[string]any, limit, value any, where string) error {
	text, _ := value.(string)
	if _, err := base64.StdEncoding.DecodeString(text); limit != "base64" || err != nil {
		return fmt.Errorf("%s: got %q, want it in %v", where, text, limit)
	}
	return nil
}

func ruleRequired(_ schemas, _ map[string]any, limit, value any, where string) error {
	object, _ := value.(map[string]any)
	for _, name := range limit.([]any) {
		if _, ok := object[name.(string)]; !ok {
			return fmt.Errorf("%s: %v is missing", where, name)
		}
	}
	return nil
}

// ruleFields is stricter than JSON Schema: to clients an answer is open, as it may grow, but a node
// must not write what is not described.
func ruleFields(s schemas, schema map[string]any, _, value any, where string) error {
	object, _ := value.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		property := cmp.Or(properties[name], schema["additionalProperties"])
		if property == nil || property == false {
			return fmt.Errorf("%s: %s is not described", where, name)
		}
		if err := s.check(property, object[name], where+"."+name); err != nil {
			return err
		}
	}
	return nil
}

func ruleItems(s schemas, _ map[string]any, limit, value any, where string) error {
	list, _ := value.([]any)
	for i, item := range list {
		if err := s.check(limit, item, fmt.Sprintf("%s[%d]", where, i)); err != nil {
			return err
		}
	}
	return nil
}

func ruleAnyOf(s schemas, _ map[string]any, limit, value any, where string) (err error) {
	for _, one := range limit.([]any) {
		if err = s.check(one, value, where); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: none of the possible forms: %w", where, err)
}
