package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// fields holds what is described of an object against the type that is written: its fields, which
// of them are always there, and what they are.
func (s schemas) fields(node any, written reflect.Type, where string) (faults []string) {
	schema, err := s.resolve(node)
	if err != nil {
		return []string{where + ": " + err.Error()}
	}
	if written.Kind() == reflect.Pointer {
		written = written.Elem()
	}
	if written == reflect.TypeFor[json.RawMessage]() {
		return nil // any JSON
	}
	if want := kindOf(written); want != "" {
		if got := fmt.Sprint(schema["type"], " ", schema["format"]); !strings.Contains(got, want) {
			faults = append(faults, fmt.Sprintf("%s: got %q described, want %q", where, got, want))
		}
		return faults
	}
	if written.Kind() == reflect.Slice {
		return s.fields(schema["items"], written.Elem(), where+"[]")
	}
	if written.Kind() == reflect.Map {
		return s.fields(schema["additionalProperties"], written.Elem(), where+"{}")
	}
	properties, _ := schema["properties"].(map[string]any)
	left, always := maps.Clone(properties), []string{}
	for _, field := range jsonFields(written) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if properties[name] == nil {
			faults = append(faults, where+"."+name+": not described")
			continue
		}
		delete(left, name)
		if options != "omitempty" {
			always = append(always, name)
		}
		faults = append(faults, s.fields(properties[name], field.Type, where+"."+name)...)
	}
	for name := range left {
		faults = append(faults, where+"."+name+": described, and never written")
	}
	required, _ := schema["required"].([]any)
	if got := fmt.Sprint(required); got != fmt.Sprint(always) {
		faults = append(faults, fmt.Sprintf("%s: got %s required, want %s", where, got, always))
	}
	if schema["additionalProperties"] != nil {
		faults = append(faults, where+": closed, but answers may grow")
	}
	return faults
}

// jsonFields are a struct's fields, those of embedded ones included.
func jsonFields(t reflect.Type) (all []reflect.StructField) {
	for field := range t.Fields() {
		if field.Anonymous {
			all = append(all, jsonFields(field.Type)...)
			continue
		}
		all = append(all, field)
	}
	return all
}

// kindOf is what is described of a value that has no parts: "" if it has some.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int64, reflect.Uint64:
		return "integer int64"
	case reflect.Int:
		return "integer"
	case reflect.Float64:
		return "double"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "string"
		}
	}
	return ""
}

func TestOpenAPIHasEveryField(t *testing.T) {
	t.Parallel()
	s := described(t)
	for ref, written := range map[string]reflect.Type{
		"Problem": reflect.TypeFor[Problem](), "JobID": reflect.TypeFor[JobID](), "Counts": reflect.TypeFor[queue.Counts](),
		"Queue": reflect.TypeFor[status.Queue](), "Status": reflect.TypeFor[status.Status](), "Shard": reflect.TypeFor[status.Shard](),
		"Member": reflect.TypeFor[status.Member](), "Why": reflect.TypeFor[status.Why](), "Figures": reflect.TypeFor[Figures](),
		"Plan": reflect.TypeFor[Plan](), "Pushed": reflect.TypeFor[Pushed](), "Errors": reflect.TypeFor[Errors](), "Redis": reflect.TypeFor[Redis](),
		"Page": reflect.TypeFor[JobPage[Job]](), "Job": reflect.TypeFor[Job](), "Step": reflect.TypeFor[Changed](), "Deleted": reflect.TypeFor[Deleted](),
		"Recurring": reflect.TypeFor[Recurring](), "AllRecurring": reflect.TypeFor[AllRecurring](), "Upcoming": reflect.TypeFor[Upcoming](), "Removed": reflect.TypeFor[Removed](),
		"Reply": reflect.TypeFor[Reply](), "Noted": reflect.TypeFor[Noted](), "Queues": reflect.TypeFor[Queues](), "Tags": reflect.TypeFor[Tags](), "Paused": reflect.TypeFor[Paused](), "Drained": reflect.TypeFor[Drained](),
	} {
		node, err := s.at("#/components/schemas/" + ref)
		must(t, err)
		for _, fault := range s.fields(node, written, ref) {
			t.Error(fault)
		}
	}
}

func TestFieldsObject(t *testing.T) {
	t.Parallel()
	s := described(t)
	for name, c := range map[string]struct {
		written reflect.Type
		want    string
	}{
		"right": {reflect.TypeFor[[]status.Move](), ""},
		"missing": {reflect.TypeFor[[]struct {
			status.Move
			N int `json:"n"`
		}](), "moves[].n: not described"},
		"other type": {reflect.TypeFor[[]struct {
			Queue  string `json:"queue"`
			Index  string `json:"index"`
			From   string `json:"from"`
			To     string `json:"to"`
			Reason string `json:"reason"`
		}](), `moves[].index: got "integer <nil>" described, want "string"`},
		"optional": {reflect.TypeFor[[]struct {
			Queue  string `json:"queue"`
			Index  int    `json:"index"`
			From   string `json:"from"`
			To     string `json:"to"`
			Reason string `json:"reason,omitempty"`
		}](), "moves[]: got [queue index from to reason] required, want [queue index from to]"},
		"fewer": {reflect.TypeFor[[]struct {
			Queue string `json:"queue"`
		}](), "moves[].to: described, and never written"},
	} {
		node, err := s.at("#/components/schemas/Plan/properties/moves")
		must(t, err)
		faults := s.fields(node, c.written, "moves")
		if c.want == "" && len(faults) > 0 || c.want != "" && !slices.Contains(faults, c.want) {
			t.Errorf("%s: got %q, want %q among them", name, faults, c.want)
		}
	}
}
