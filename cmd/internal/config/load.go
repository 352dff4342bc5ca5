package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Override sets a key from outside the file.
type Override struct {
	Source string // the flag or variable, for errors: "--http"
	Key    string // "node.http"
	Value  string // as written in the file; a string needs no quotes
}

// Input is everything that makes up a configuration.
type Input struct {
	Name  string     // the name of the file, for errors; "" without a file
	File  []byte     // the content of the file
	Env   []string   // "NAME=value"; only LOWKIQ_* are read
	Flags []Override // they override the file and Env
}

// Load reads the file, applies the overrides and checks the result. Its errors are *Error, joined if there are several.
func Load(in Input) (*Config, error) {
	cfg := &Config{Queues: map[string]*Queue{}, origins: map[string]origin{}, name: in.Name}
	if err := cfg.readFile(in.File); err != nil {
		return nil, err
	}
	known := listSettings(reflect.ValueOf(cfg).Elem(), "")
	overrides, err := fromEnv(in.Env, known)
	if err != nil {
		return nil, err
	}
	for _, o := range append(overrides, in.Flags...) {
		if err := cfg.applyOverride(o, known); err != nil {
			return nil, err
		}
	}
	return cfg, cfg.check()
}

// readFile reads the file into the configuration. An empty file sets nothing. A second document with content is an
// error.
func (cfg *Config) readFile(text []byte) error {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin with a byte order mark
	file, err := parser.ParseBytes(text, 0)
	var bad yaml.Error
	if errors.As(err, &bad) {
		return origin{cfg.name, bad.GetToken()}.newError("", "%s", explainSyntax(bad.GetMessage()))
	}
	if err != nil {
		return origin{name: cfg.name}.newError("", "%s", err.Error())
	}
	d := decoder{cfg: cfg, name: cfg.name, anchors: map[string]ast.Node{}}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			return d.originOf(doc.Body).newError("", "the file must have a single document")
		}
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if err := d.decodeNode(doc.Body, reflect.ValueOf(cfg).Elem(), "", ""); err != nil {
			return err
		}
	}
	return nil
}

// explainSyntax says what the YAML of a file must be where its reader names a token or a context.
func explainSyntax(message string) string {
	switch {
	case strings.HasPrefix(message, "found character '\t'"):
		return "a tab begins the line; YAML must be indented with spaces"
	case strings.Contains(message, "not allowed in this context"), strings.Contains(message, "non-map value is specified"), strings.Contains(message, "unexpected key name"):
		return message + "; the keys of a mapping must begin in the same column, below the key that has them"
	}
	return message
}

// applyOverride sets the value of a key.
func (cfg *Config) applyOverride(o Override, known []setting) error {
	from := origin{name: o.Source}
	i := slices.IndexFunc(known, func(s setting) bool { return s.key == o.Key })
	if i < 0 {
		return from.newError(o.Key, "no such key")
	}
	v, tag := known[i].value, known[i].tag
	d := decoder{cfg: cfg, name: o.Source, outside: true}
	if v.IsValid() && v.Kind() == reflect.String {
		cfg.origins[o.Key] = from
		value, err := json.Marshal(o.Value)
		if err == nil {
			err = bounds.Read(v, tag, value)
		}
		if err != nil {
			return from.newError(o.Key, "%s", err.Error())
		}
		return nil
	}
	file, err := parser.ParseBytes([]byte(o.Value), 0)
	if err != nil || len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return from.newError(o.Key, "%q is no value", o.Value)
	}
	if q := known[i].queue; q != nil {
		return d.decodeRule(q, file.Docs[0].Body, o.Key, known[i].rule)
	}
	v.SetZero()
	return d.decodeNode(file.Docs[0].Body, v, o.Key, tag)
}

// setting is a key that can be set from outside the file.
type setting struct {
	key   string
	value reflect.Value
	tag   reflect.StructTag

	queue *Queue // for a rule of a queue, in place of value
	rule  string
}

// listSettings lists the keys of a struct, with those of its queues.
func listSettings(v reflect.Value, prefix string) []setting {
	var all []setting
	if q, ok := v.Addr().Interface().(*Queue); ok {
		for _, rule := range rules.FileKeys() {
			all = append(all, setting{key: prefix + rule, queue: q, rule: rule})
		}
	}
	for field, value := range v.Fields() {
		key := keyOf(field)
		switch {
		case key == "":
		case value.Kind() == reflect.Map && value.Type().Elem().Kind() == reflect.Pointer:
			for _, name := range slices.SortedFunc(slices.Values(value.MapKeys()),
				func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) }) {
				all = append(all, listSettings(value.MapIndex(name).Elem(), prefix+key+"."+name.String()+".")...)
			}
		case value.Kind() == reflect.Struct:
			all = append(all, listSettings(value, prefix+key+".")...)
		default:
			all = append(all, setting{key: prefix + key, value: value, tag: field.Tag})
		}
	}
	return all
}

// fieldsByKey returns the fields of a struct by their keys.
func fieldsByKey(t reflect.Type) map[string]reflect.StructField {
	found := map[string]reflect.StructField{}
	for field := range t.Fields() {
		if key := keyOf(field); key != "" {
			found[key] = field
		}
	}
	return found
}

// keyOf returns the key of a field. A recurring entry has the same keys in YAML and JSON.
func keyOf(field reflect.StructField) string {
	key, _, _ := strings.Cut(cmp.Or(field.Tag.Get("yaml"), field.Tag.Get("json")), ",")
	return key
}
