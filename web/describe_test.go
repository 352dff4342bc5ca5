package web

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/web/auth"
)

// The test makes openapi.yaml: requests from the table of routes, schemas from the types of bodies and answers, descriptions
// from the comments of these types. Tags of their fields say the rest:
//
//	enum    the allowed values; "-": any. Without it those of the constants of the field's type
//	min,max bounds of a number
//	either  one of the fields with the same word must be there
//	help    the description, instead of the comment

// TestOpenAPIIsCurrent fails unless openapi.yaml is what the routes and types say.
func TestOpenAPIIsCurrent(t *testing.T) {
	t.Parallel()
	golden.File(t, "openapi.yaml", describe(t, (&api{}).listRoutes()))
}

// object is an object of YAML; its fields keep their order.
type object []field

type field struct {
	key   string
	value any
}

// rawJSON is JSON, which is YAML as well.
type rawJSON string

// document is openapi.yaml in the making.
type document struct {
	testing.TB
	docs     map[string]string   // comments by "package.Type" and "package.Type.Field"
	words    map[string][]string // constants of string types
	parsed   map[string]bool     // packages
	examples map[string]any      // of answers, by schema
	types    map[string]reflect.Type
	schemas  map[string]object
	statuses map[int]bool
}

func describe(t testing.TB, routes []route) string {
	t.Helper()
	d := &document{TB: t, docs: map[string]string{}, words: map[string][]string{}, parsed: map[string]bool{},
		types: map[string]reflect.Type{}, schemas: map[string]object{}, statuses: map[int]bool{}}
	text, err := os.ReadFile("testdata/answers.yaml")
	must(t, err)
	must(t, yaml.UnmarshalWithOptions(text, &d.examples, yaml.UseOrderedMap()))
	paths := object{}
	for _, rt := range routes {
		at := documentedPath(rt.pattern[len(rt.method())+1:])
		i := slices.IndexFunc(paths, func(f field) bool { return f.key == at })
		if i < 0 {
			i, paths = len(paths), append(paths, field{at, object{}})
		}
		paths[i].value = append(paths[i].value.(object), field{strings.ToLower(rt.method()), d.operation(rt)})
	}
	responses := object{}
	for _, status := range slices.Sorted(maps.Keys(d.statuses)) {
		responses = append(responses, field{strconv.Itoa(status), d.problem(status)})
	}
	schemas := object{}
	for _, name := range slices.Sorted(maps.Keys(d.schemas)) {
		schemas = append(schemas, field{name, d.schemas[name]})
	}
	var out strings.Builder
	out.WriteString("# Made from the routes and types of package web by: LOWKIQ_GOLDEN_WRITE=1 go test ./web -run TestOpenAPIIsCurrent\n")
	head, err := os.ReadFile("testdata/openapi-head.yaml")
	must(t, err)
	out.Write(head)
	emit(&out, 0, object{{"paths", paths}, {"components", object{{"securitySchemes", object{
		{"bearer", object{{"type", "http"}, {"scheme", "bearer"},
			{"description", "A token of the node, for reading, pushing, or everything. Nodes without tokens ask for none."}}},
		{"session", object{{"type", "apiKey"}, {"in", "cookie"}, {"name", "lowkiq_session"},
			{"description", "/login gives it to a browser for a read or an admin token, for 12 hours."}}},
	}}, {"responses", responses}, {"schemas", schemas}}}})
	return out.String()
}

// operation describes a route.
func (d *document) operation(rt route) object {
	op := object{{"tags", []any{rt.group}}, {"operationId", rt.name}, {"summary", rt.about}}
	if rt.more != "" {
		op = append(op, field{"description", rt.more})
	}
	if rt.requiredRole() == auth.Probe {
		op = append(op, field{"x-role", "none"}, field{"security", []any{}})
	} else {
		op = append(op, field{"x-role", rt.requiredRole().String()})
	}
	if list := parametersOf(rt); len(list) > 0 {
		op = append(op, field{"parameters", list})
	}
	if rt.takes != nil {
		op = append(op, field{"requestBody", d.body(rt)})
	}
	responses := object{{"200", d.answer(rt)}}
	if rt.creates {
		responses = append(responses, field{"201", d.answer(rt)})
	}
	for _, status := range statusesOf(rt) {
		node := any(object{{"$ref", "#/components/responses/" + strconv.Itoa(status)}})
		if status == http.StatusInternalServerError && !strings.Contains(rt.pattern, "/api/") {
			node = object{{"description", "it failed"}, {"content", object{{"text/plain", object{{"schema", object{{"type", "string"}}}}}}}}
		} else {
			d.statuses[status] = true
		}
		responses = append(responses, field{strconv.Itoa(status), node})
	}
	return append(op, field{"responses", responses})
}

// statusesOf are those of errors that a route may answer.
func statusesOf(rt route) []int {
	all := append([]int{400}, rt.fails...)
	if rt.requiredRole() > auth.Anonymous {
		all = append(all, 401, 403)
		if auth.ForPeople(rt.path) {
			all = append(all, 303)
		}
	}
	if rt.takes != nil {
		all = append(all, 408, 413)
	}
	if rt.gives != nil {
		all = append(all, 500, 503)
	}
	if strings.Contains(rt.pattern, "{q}") {
		all = append(all, 404)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func parametersOf(rt route) (list []any) {
	for _, found := range regexp.MustCompile(`\{(\w+)`).FindAllStringSubmatch(rt.pattern, -1) {
		p := pathParams[found[1]]
		p.name, p.required = found[1], true
		list = append(list, p.describe("path"))
	}
	if !slices.Equal(namesOf(rt.query), namesOf(anyQuery)) {
		for _, p := range rt.query {
			list = append(list, p.describe("query"))
		}
	}
	for _, p := range rt.headers {
		list = append(list, p.describe("header"))
	}
	return list
}

func (p param) describe(in string) object {
	node := object{{"name", p.name}, {"in", in}}
	if p.required {
		node = append(node, field{"required", true})
	}
	schema, example := object{{"type", "string"}}, any(p.example)
	if p.number {
		schema, example = object{{"type", "integer"}, {"format", "int64"}}, rawJSON(p.example)
	}
	if p.max > 0 {
		schema = append(schema, field{"minimum", p.min}, field{"maximum", p.max})
	}
	if p.words != nil {
		schema = append(schema, field{"enum", anys(p.words)})
	}
	if p.base64 {
		schema = append(schema, field{"contentEncoding", "base64"})
	}
	if p.usual != "" {
		usual := any(p.usual)
		if p.number {
			usual = rawJSON(p.usual)
		}
		schema = append(schema, field{"default", usual})
	}
	if slices.Contains(p.words, "") {
		node = append(node, field{"allowEmptyValue", true})
	}
	return append(node, field{"description", p.about}, field{"schema", schema}, field{"example", example})
}

// body describes what a request carries. A list may come as a single item, or with an item per line.
func (d *document) body(rt route) object {
	t, example := reflect.TypeOf(rt.takes), rt.body
	if example == "" {
		example = "{}"
	}
	var media object
	switch body := rt.takes.(type) {
	case partial:
		all := d.fields(reflect.TypeOf(body.of), true)
		media = object{{"application/json", object{{"schema", without(all, "required")}, {"example", rawJSON(example)}}}}
	default:
		schema := d.schema(t, "", true)
		if t.Kind() == reflect.Slice {
			schema = object{{"anyOf", []any{d.schema(t.Elem(), "", true), schema}}}
		}
		media = object{{"application/json", object{{"schema", schema}, {"example", rawJSON(example)}}}}
		if t.Kind() == reflect.Slice {
			media = append(media, field{"application/x-ndjson", object{
				{"schema", object{{"type", "string"}, {"description", "an object per line"}}}, {"example", example + "\n" + example + "\n"}}})
		}
	}
	return object{{"required", !rt.optional}, {"content", media}}
}

// answer describes the answer to a request that is granted.
func (d *document) answer(rt route) object {
	media, schema, about := rt.media, object{{"type", "string"}}, rt.about
	switch gives := rt.gives.(type) {
	case nil:
	case anyOf:
		var list []any
		for _, value := range gives {
			list = append(list, d.schema(reflect.TypeOf(value), "", false))
		}
		schema = object{{"anyOf", list}}
		about = d.doc(reflect.TypeOf(gives[0]))
	default:
		t := reflect.TypeOf(gives)
		schema, about = d.schema(t, "", false), d.doc(t)
	}
	switch {
	case media == "text/event-stream":
		schema = object{{"type", "string"}, {"contentMediaType", "application/json"}, {"contentSchema", schema}}
	case media == "":
		media = "application/json"
	}
	content := object{{"schema", schema}}
	if example := d.example(rt.gives); example != nil && rt.media == "" {
		content = append(content, field{"example", example})
	}
	node := object{{"description", about}}
	if rt.sends != nil {
		headers := object{}
		for _, p := range rt.sends {
			headers = append(headers, field{p.name, object{{"description", p.about}, {"required", true}, {"schema", object{{"type", "string"}}}}})
		}
		node = append(node, field{"headers", headers})
	}
	return append(node, field{"content", object{{media, content}}})
}

// example is that of an answer, nil if there is none.
func (d *document) example(of any) any {
	if list, ok := of.(anyOf); ok {
		of = list[0]
	}
	t := reflect.TypeOf(of)
	switch {
	case t == nil:
		return nil
	case t.Kind() == reflect.Slice && d.examples[nameOf(t.Elem())] != nil:
		return []any{d.examples[nameOf(t.Elem())]}
	}
	return d.examples[nameOf(t)]
}

// problems are the errors that routes answer.
var problems = map[int]struct{ about, detail string }{
	400: {"the request is malformed, and detail says how to correct it; nothing was changed", `limit: got "0", must be a number from 1 to 1000`},
	401: {"no token that this node knows", "this needs the header Authorization: Bearer TOKEN, with the admin token"},
	403: {"a token of another role, a missing client certificate, or a request from the page of another site",
		"POST with the read token; this needs the admin token"},
	404: {"no such queue, job, node, entry or profile", `unknown queue "order" (known: mail, orders)`},
	408: {"the body did not arrive within 5 minutes", "the body did not arrive within 5m0s"},
	409: {"not possible as the cluster is now", "this node is not in a cluster: it was started without a gossip address (node.bind)"},
	412: {"it was changed since the revision of If-Match; nothing was changed now",
		"the rules were changed meanwhile: they are at revision 8, not 7; read them again, and repeat the changes that are still right"},
	413: {"the body is longer than 32 MiB", "the body is longer than the limit of 33554432 bytes; send it in parts"},
	428: {"a change needs the header If-Match", "the header If-Match must be the revision that was read"},
	500: {"only an operator can mend it; the node logs it too", `job "a": the record is damaged`},
	503: {"Redis is out of reach or full, or the node is not ready; the same request may work later",
		"read the queue registry: Redis 127.0.0.1:6379: connection refused"},
}

func (d *document) problem(status int) object {
	if status == http.StatusSeeOther {
		return object{{"description", "redirects a browser without a session to the login page, which leads back"},
			{"headers", object{{"Location", object{{"required", true}, {"schema", object{{"type", "string"}}}}}}},
			{"content", object{{"text/html", object{{"schema", object{{"type", "string"}}}}}}}}
	}
	node := object{{"description", problems[status].about}}
	if name := map[int]string{401: "WWW-Authenticate", 503: "Retry-After"}[status]; name != "" {
		node = append(node, field{"headers", object{{name, object{{"required", true}, {"schema", object{{"type", "string"}}}}}}})
	}
	example := object{{"type", "about:blank"}, {"title", http.StatusText(status)}, {"status", status}, {"detail", problems[status].detail}}
	return append(node, field{"content", object{{"application/problem+json", object{
		{"schema", d.schema(reflect.TypeFor[Problem](), "", false)}, {"example", example}}}}})
}

// schema describes a type. A struct is described by itself, and referred to. Bodies take no other fields than these.
func (d *document) schema(t reflect.Type, tag reflect.StructTag, body bool) object {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	case t == reflect.TypeFor[json.Number]():
		return append(object{{"type", "integer"}}, boundsOf(tag)...)
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{{"type", "string"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.schema(t.Elem(), tag, body)
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int:
		return append(object{{"type", "integer"}}, boundsOf(tag)...)
	case reflect.Int64, reflect.Uint64:
		return append(object{{"type", "integer"}, {"format", "int64"}}, boundsOf(tag)...)
	case reflect.Float64:
		return append(object{{"type", "number"}, {"format", "double"}}, boundsOf(tag)...)
	case reflect.String:
		return d.text(t, tag)
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", d.schema(t.Elem(), "", body)}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{{"type", "string"}, {"contentEncoding", "base64"}}
		}
		return object{{"type", "array"}, {"items", d.schema(t.Elem(), "", body)}}
	case reflect.Struct:
		if t.NumField() == 0 {
			return object{{"type", "object"}, {"additionalProperties", false}}
		}
		name := nameOf(t)
		if other := d.types[name]; other != nil && other != t {
			d.Fatalf("%v and %v would have the same name", t, other)
		}
		if d.types[name] == nil {
			d.types[name] = t
			d.schemas[name] = d.fields(t, body)
		}
		return object{{"$ref", "#/components/schemas/" + name}}
	}
	d.Fatalf("%v cannot be described", t)
	return nil
}

// text describes a string.
func (d *document) text(t reflect.Type, tag reflect.StructTag) object {
	words := strings.Fields(tag.Get("enum"))
	if len(words) == 0 && t != reflect.TypeFor[string]() {
		d.read(t)
		words = d.words[t.PkgPath()+"."+t.Name()]
	}
	if len(words) == 0 || words[0] == "-" {
		return object{{"type", "string"}}
	}
	return object{{"type", "string"}, {"enum", anys(words)}}
}

func boundsOf(tag reflect.StructTag) (node object) {
	for _, bound := range [][2]string{{"min", "minimum"}, {"max", "maximum"}} {
		if text := tag.Get(bound[0]); text != "" {
			node = append(node, field{bound[1], rawJSON(text)})
		}
	}
	return node
}

// fields describes a struct.
func (d *document) fields(t reflect.Type, body bool) object {
	d.read(t)
	var required, either []any
	properties := object{}
	for _, f := range jsonFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		node := d.schema(f.Type, f.Tag, body)
		if options == "" {
			required = append(required, name)
		}
		if f.Type.Kind() == reflect.Pointer && options == "" {
			node[0].value = []any{node[0].value, "null"}
		}
		if f.Tag.Get("either") != "" {
			either = append(either, object{{"required", []any{name}}})
		}
		if about := cmp.Or(f.Tag.Get("help"), d.docs[f.owner+"."+f.Name]); about != "" {
			node = append(node, field{"description", about})
		}
		properties = append(properties, field{name, node})
	}
	node := object{{"type", "object"}}
	if about := d.doc(t); about != "" {
		node = append(node, field{"description", about})
	}
	if body {
		node = append(node, field{"additionalProperties", false})
	}
	if required != nil {
		node = append(node, field{"required", required})
	}
	if either != nil {
		node = append(node, field{"anyOf", either})
	}
	if len(properties) > 0 {
		node = append(node, field{"properties", properties})
	}
	return node
}

// jsonField is a field, and the type that declares it.
type jsonField struct {
	reflect.StructField
	owner string
}

// jsonFields are a struct's fields, those of embedded structs included.
func jsonFields(t reflect.Type) (all []jsonField) {
	for f := range t.Fields() {
		if f.Anonymous {
			all = append(all, jsonFields(f.Type)...)
			continue
		}
		all = append(all, jsonField{f, t.PkgPath() + "." + nameOf(t)})
	}
	return all
}

// nameOf is the name of a type without its parameters.
func nameOf(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	return name
}

// doc is the comment of a type, or of that of its items.
func (d *document) doc(t reflect.Type) string {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	d.read(t)
	return d.docs[t.PkgPath()+"."+nameOf(t)]
}

// read parses the package of a type: its comments, and the constants of its string types.
func (d *document) read(t reflect.Type) {
	d.Helper()
	if d.parsed[t.PkgPath()] {
		return
	}
	d.parsed[t.PkgPath()] = true
	dir := filepath.Join("..", strings.TrimPrefix(t.PkgPath(), "github.com/lowkiq/lowkiq"))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(d, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		must(d, err)
		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					d.readType(t.PkgPath(), general, spec)
				case *ast.ValueSpec:
					d.readConstant(t.PkgPath(), spec)
				}
			}
		}
	}
}

func (d *document) readType(pkg string, decl *ast.GenDecl, spec *ast.TypeSpec) {
	name := pkg + "." + spec.Name.Name
	d.docs[name] = plain(decl.Doc)
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range structure.Fields.List {
		about := plain(f.Doc)
		if about == "" {
			about = plain(f.Comment)
		}
		for _, of := range f.Names {
			d.docs[name+"."+of.Name] = about
		}
	}
}

func (d *document) readConstant(pkg string, spec *ast.ValueSpec) {
	of, ok := spec.Type.(*ast.Ident)
	if !ok || len(spec.Values) != 1 {
		return
	}
	if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
		if word, err := strconv.Unquote(value.Value); err == nil && word != "" {
			d.words[pkg+"."+of.Name] = append(d.words[pkg+"."+of.Name], word)
		}
	}
}

// plain is the first paragraph of a comment, without its links.
func plain(comment *ast.CommentGroup) string {
	text, _, _ := strings.Cut(comment.Text(), "\n\n")
	text = regexp.MustCompile(`\[([\w.]+)\]`).ReplaceAllString(text, "$1")
	return strings.Join(strings.Fields(text), " ")
}

func anys(words []string) (list []any) {
	for _, word := range words {
		list = append(list, word)
	}
	return list
}

func without(node object, key string) object {
	return slices.DeleteFunc(slices.Clone(node), func(f field) bool { return f.key == key })
}

// width is that of the lines of openapi.yaml.
const width = 140

// emit writes YAML: a value on its line if it fits, else below its key.
func emit(out *strings.Builder, indent int, value any) {
	margin := strings.Repeat("  ", indent)
	switch v := value.(type) {
	case object:
		for _, f := range v {
			out.WriteString(margin + flow(f.key) + ":")
			emitValue(out, indent, f.value, len(margin)+len(f.key)+2)
		}
	case []any:
		for _, item := range v {
			out.WriteString(margin + "-")
			emitValue(out, indent, item, len(margin)+2)
		}
	}
}

func emitValue(out *strings.Builder, indent int, value any, used int) {
	line := flow(value)
	text, isText := value.(string)
	switch {
	case used+len(line) <= width:
		out.WriteString(" " + line + "\n")
	case isText && !strings.Contains(text, "\n"):
		out.WriteString(" >-\n")
		fold(out, strings.Repeat("  ", indent+1), text)
	case isText, isRaw(value):
		out.WriteString(" " + line + "\n")
	default:
		out.WriteString("\n")
		emit(out, indent+1, ordered(value))
	}
}

func isRaw(value any) bool {
	_, ok := value.(rawJSON)
	return ok
}

// ordered is a map that was read from YAML as an object.
func ordered(value any) any {
	if m, ok := value.(yaml.MapSlice); ok {
		node := object{}
		for _, item := range m {
			node = append(node, field{fmt.Sprint(item.Key), item.Value})
		}
		return node
	}
	return value
}

// fold writes words, as many on a line as fit.
func fold(out *strings.Builder, margin, text string) {
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && len(margin)+len(line)+1+len(word) > width {
			out.WriteString(margin + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	out.WriteString(margin + line + "\n")
}

// plainScalar is text that YAML reads as it is.
var plainScalar = regexp.MustCompile(`^[A-Za-z/$][A-Za-z0-9_./${}+-]*( [A-Za-z0-9_./()+-]+)*$`)

// flow is a value on a line.
func flow(value any) string {
	switch v := ordered(value).(type) {
	case object:
		parts := make([]string, len(v))
		for i, f := range v {
			parts[i] = flow(f.key) + ": " + flow(f.value)
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = flow(v[i])
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case rawJSON:
		return string(v)
	case string:
		if plainScalar.MatchString(v) && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(v)) {
			return v
		}
		var quoted strings.Builder
		enc := json.NewEncoder(&quoted)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // a string can be encoded
		return strings.TrimSuffix(quoted.String(), "\n")
	default:
		return fmt.Sprint(v)
	}
}
