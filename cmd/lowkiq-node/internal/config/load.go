package config

import (
	"errors"
	"fmt"
	"maps"
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
	overrides, err := cfg.fromEnv(in.Env)
	if err != nil {
		return nil, err
	}
	for _, o := range append(overrides, in.Flags...) {
		if err := cfg.override(o); err != nil {
			return nil, err
		}
	}
	return cfg, cfg.check()
}

func (cfg *Config) readFile(text []byte) error {
	file, err := parser.ParseBytes(text, 0)
	var bad yaml.Error
	if errors.As(err, &bad) {
		return origin{cfg.name, bad.GetToken()}.fault("", "%s", bad.GetMessage())
	}
	if err != nil {
		return &Error{Place: cfg.name, Reason: err.Error()}
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
func (cfg *Config) override(o Override) error {
	v, tag, err := cfg.find(o.Key)
	if err != nil {
		return origin{name: o.Source}.fault(o.Key, "%v", err)
	}
	d := decoder{cfg: cfg, name: o.Source, outside: true}
	if v.Kind() == reflect.String {
		return d.scalar(o.Value, v, o.Key, tag, origin{name: o.Source})
	}
	file, err := parser.ParseBytes([]byte(o.Value), 0)
	if err != nil || len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return origin{name: o.Source}.fault(o.Key, "%q is no value", o.Value)
	}
	v.SetZero()
	return d.decode(file.Docs[0].Body, v, o.Key, tag)
}

// find walks from the root to the value of a key.
func (cfg *Config) find(key string) (reflect.Value, reflect.StructTag, error) {
	v, tag := reflect.ValueOf(cfg).Elem(), reflect.StructTag("")
	rest := key
	for rest != "" {
		var word string
		word, rest, _ = strings.Cut(rest, ".")
		if v.Type() == reflect.TypeFor[map[string]*Queue]() {
			// A queue's name may hold dots; the longest one that fits is it.
			name, below := queueIn(cfg.Queues, word, rest)
			if name == "" {
				return v, tag, fmt.Errorf("no queue %q in the file", word)
			}
			v, rest = reflect.ValueOf(cfg.Queues[name]).Elem(), below
			continue
		}
		field, ok := fields(v.Type())[word]
		if !ok {
			return v, tag, errors.New("no such key")
		}
		v, tag = v.FieldByIndex(field.Index), field.Tag
	}
	return v, tag, nil
}

func queueIn(queues map[string]*Queue, word, rest string) (name, below string) {
	full := word + "." + rest
	for _, q := range slices.Sorted(maps.Keys(queues)) {
		if after, ok := strings.CutPrefix(full, q+"."); ok && len(q) >= len(name) {
			name, below = q, after
		}
	}
	return name, below
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
