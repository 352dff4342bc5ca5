package config

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Override sets one key from outside the file.
type Override struct {
	Source string // who says so, for messages: "--http"
	Key    string // "node.http"
	Value  string // as written in the file; a string needs no quotes
}

// Input is all that a configuration is made of.
type Input struct {
	Name  string     // of the file, for messages; "" if there is none
	File  []byte     // its content
	Env   []string   // "NAME=value"; only LOWKIQ_* matter
	Flags []Override // the strongest
}

// Load reads, overrides and checks. Its errors are *Error, joined if there are several.
func Load(in Input) (*Config, error) {
	cfg := &Config{Queues: map[string]*Queue{}, origins: map[string]origin{}, name: in.Name}
	if err := cfg.readFile(in.File); err != nil {
		return nil, err
	}
	known := settings(reflect.ValueOf(cfg).Elem(), "")
	overrides, err := fromEnv(in.Env, known)
	if err != nil {
		return nil, err
	}
	for _, o := range append(overrides, in.Flags...) {
		if err := cfg.override(o, known); err != nil {
			return nil, err
		}
	}
	return cfg, cfg.check()
}

func (cfg *Config) readFile(text []byte) error {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin with a byte order mark
	file, err := parser.ParseBytes(text, 0)
	var bad yaml.Error
	if errors.As(err, &bad) {
		return origin{cfg.name, bad.GetToken()}.fault("", "%s", bad.GetMessage())
	}
	if err != nil {
		return origin{name: cfg.name}.fault("", "%s", err.Error())
	}
	d := decoder{cfg: cfg, name: cfg.name, anchors: map[string]ast.Node{}}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			return d.at(doc.Body).fault("", "a second document: want one")
		}
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if err := d.decode(doc.Body, reflect.ValueOf(cfg).Elem(), "", ""); err != nil {
			return err
		}
	}
	return nil
}

// override writes one value into the place that its key names.
func (cfg *Config) override(o Override, known []setting) error {
	from := origin{name: o.Source}
	i := slices.IndexFunc(known, func(s setting) bool { return s.key == o.Key })
	if i < 0 {
		return from.fault(o.Key, "no such key")
	}
	v, tag := known[i].value, known[i].tag
	d := decoder{cfg: cfg, name: o.Source, outside: true}
	if v.Kind() == reflect.String {
		return d.scalar(o.Value, v, o.Key, tag, from)
	}
	file, err := parser.ParseBytes([]byte(o.Value), 0)
	if err != nil || len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return from.fault(o.Key, "%q is no value", o.Value)
	}
	v.SetZero()
	return d.decode(file.Docs[0].Body, v, o.Key, tag)
}

// setting is a key that can be set from outside the file.
type setting struct {
	key   string
	value reflect.Value
	tag   reflect.StructTag
}

// settings lists the keys of a struct, those of the queues that are there included.
func settings(v reflect.Value, prefix string) []setting {
	var all []setting
	for field, value := range v.Fields() {
		key := field.Tag.Get("yaml")
		switch {
		case key == "":
		case value.Kind() == reflect.Map && value.Type().Elem().Kind() == reflect.Pointer:
			for _, name := range slices.SortedFunc(slices.Values(value.MapKeys()), func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) }) {
				all = append(all, settings(value.MapIndex(name).Elem(), prefix+key+"."+name.String()+".")...)
			}
		case value.Kind() == reflect.Struct:
			all = append(all, settings(value, prefix+key+".")...)
		default:
			all = append(all, setting{prefix + key, value, field.Tag})
		}
	}
	return all
}

// fields are the keys of a struct.
func fields(t reflect.Type) map[string]reflect.StructField {
	found := map[string]reflect.StructField{}
	for field := range t.Fields() {
		if key := field.Tag.Get("yaml"); key != "" {
			found[key] = field
		}
	}
	return found
}
