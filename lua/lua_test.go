package lua

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// scripts returns the names of all files, and which of them are there for others to include.
func scripts(t *testing.T) (all []string, included map[string]bool) {
	t.Helper()
	included = map[string]bool{}
	for _, pattern := range []string{"*.lua", "lib/*.lua"} {
		found, err := fs.Glob(files, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			name := strings.TrimSuffix(file, ".lua")
			all = append(all, name)
			if strings.HasPrefix(name, "lib/") {
				included[name] = true
			}
		}
	}
	return all, included
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := files.ReadFile(name + ".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSourceExpandsIncludes(t *testing.T) {
	t.Parallel()
	all, included := scripts(t)
	if len(all) < 20 || len(included) < 5 {
		t.Fatalf("got %d scripts, %d included ones, want more", len(all), len(included))
	}
	for _, name := range all {
		if source := expand(name); strings.Contains(source, "--") && strings.Contains(source, "#include") || source == "" {
			t.Errorf("%s: got an include or nothing in %q", name, source)
		}
	}
	if !strings.Contains(Source("ack"), "local function take_out(") {
		t.Error("ack: got no take_out, want the text of its include")
	}
}

// The header is the contract: purpose, and for what Redis runs its keys and answer.
func TestHeaders(t *testing.T) {
	t.Parallel()
	all, included := scripts(t)
	for _, name := range all {
		header, _, _ := strings.Cut(text(t, name), "\nlocal ")
		words := []string{"-- KEYS", "-- Returns"}
		if included[name] {
			words = []string{"-- Included"}
		}
		if len(Keys(name)) > 0 {
			words[0] = "--#keys"
		}
		for _, want := range words {
			if !strings.Contains(header, want) {
				t.Errorf("%s.lua: got a header without %q", name, want)
			}
		}
	}
}

// The embedded Redis unfolds a whole string for string.byte(s), and its string.format
// and tonumber differ from Redis's: see lib/record.lua.
func TestPortable(t *testing.T) {
	t.Parallel()
	bad := regexp.MustCompile(`string\.byte\([^,()]*\)|cmsgpack|cjson|struct\.|tonumber\([a-z.]*score`)
	all, _ := scripts(t)
	for _, name := range all {
		if found := bad.FindString(expand(name)); found != "" {
			t.Errorf("%s: got %q, want what runs the same on the embedded Redis", name, found)
		}
	}
	for _, script := range []string{"string.byte(x)", "cmsgpack.pack", "tonumber(job.score"} {
		if !bad.MatchString(script) {
			t.Errorf("%q passes, want an objection", script)
		}
	}
}

// lookThrough has all scripts checked, and returns how much was checked.
func lookThrough(t *testing.T, check func(script string) (n int, objections []string)) (seen int) {
	t.Helper()
	all, _ := scripts(t)
	for _, name := range all {
		n, objections := check(expand(name))
		seen += n
		for _, o := range objections {
			t.Errorf("%s: %s", name, o)
		}
	}
	return seen
}

// The Lua of the embedded Redis assigns the first value of several before it reads the second one.
func TestAssignmentsAreApart(t *testing.T) {
	t.Parallel()
	if seen := lookThrough(t, assignments); seen < 20 {
		t.Errorf("got %d assignments of several values in all scripts, want many", seen)
	}
	for _, script := range []string{`a, b = f(a, 1), a`, `if x then a, b = 1, {n = a} end`, `a, job.n, c = 1, 2, g(x, a)`, `  else a, b = b, a end`} {
		if _, objections := assignments(script); len(objections) != 1 {
			t.Errorf("%q: got %q, want one objection", script, objections)
		}
	}
	for _, script := range []string{`local a, b = b, a`, `a, b = a + 1, b + 1`, `a, b = f(a, 1), x.a`, `a, b = tonumber(a), 'a' -- a`, `a, p = s, stop end`} {
		if _, objections := assignments(script); objections != nil {
			t.Errorf("%q: got %q, want no objection", script, objections)
		}
	}
}

var (
	several = regexp.MustCompile(`(?m)^(.*?)\b(\w[\w.\[\]]*(?:, \w[\w.\[\]]*)+) = (.+)$`)
	comment = regexp.MustCompile(`--.*`)
	quoted  = regexp.MustCompile(`'[^']*'`)
	word    = regexp.MustCompile(`\.?\b[a-z_]\w*`)
)

// assignments counts the assignments of several values, but for those that declare names, and names those that read behind their first
// value what they have assigned before.
func assignments(script string) (n int, objections []string) {
	script = quoted.ReplaceAllString(comment.ReplaceAllString(script, ""), "''")
	for _, m := range several.FindAllStringSubmatch(script, -1) {
		if before := strings.TrimSpace(m[1]); strings.HasSuffix(before, "local") || strings.HasSuffix(before, "for") {
			continue
		}
		n++
		assigned := map[string]bool{}
		names, values := strings.Split(m[2], ", "), apart(m[3])
		for i, value := range values {
			for _, used := range word.FindAllString(value, -1) {
				if assigned[used] {
					objections = append(objections, fmt.Sprintf("%q reads %s after it is assigned", m[2]+" = "+m[3], used))
				}
			}
			if i < len(names) {
				assigned[names[i]] = true
			}
		}
	}
	return n, objections
}

// apart cuts a list at the commas outside of brackets, and ends it where the statement ends.
func apart(list string) (values []string) {
	list, _, _ = strings.Cut(list+" ", " end ")
	depth, from := 0, 0
	for i, c := range list {
		switch c {
		case '(', '{', '[':
			depth++
		case ')', '}', ']':
			depth--
		case ',':
			if depth == 0 {
				values, from = append(values, list[from:i]), i+1
			}
		}
	}
	return append(values, list[from:])
}

// Redis serves nobody while a pattern is matched, and not even SCRIPT KILL is heard then. So a pattern
// must read its text once, whatever stands there: it is anchored, and each repetition ends where a
// literal follows that it cannot have eaten, or the pattern ends.
func TestPatternsReadOnce(t *testing.T) {
	t.Parallel()
	if seen := lookThrough(t, patterns); seen < 5 {
		t.Errorf("got %d patterns in all scripts, want those of lib/record.lua at least", seen)
	}
	for _, script := range []string{
		`err = string.match(err, '([^\n]+)%s*$') or err`, `string.match(s, '^%s*(.+)$')`, `string.match(s, '^(%S+)%s+x')`,
		`string.match(s, '^(%d+)%d+ ')`, `string.match(s, pattern)`, `string.find(s, 'x')`, `string.find(s, x, 1, false)`,
		`string.gsub(s, ' ', '')`, `for w in string.gmatch(s, '%S+') do`, `s:match('^x')`, `string.match(s, '^.-x')`,
		`string.match(s, '^%b()')`, `string.match(s, "^x")`, `local m = string.match`, `local f = string['find']`,
	} {
		if _, objections := patterns(script); len(objections) == 0 {
			t.Errorf("%q passes, want an objection", script)
		}
	}
	if found, objections := patterns(`string.match(r, '^[js]%-?(%d+) (%S+) %d+:()', p) string.find(s, '[\n', 1, true)`); found != 2 || objections != nil {
		t.Errorf("got %d patterns, %q, want 2 and no objection", found, objections)
	}
}

// patterns counts the patterns of a script and says which ones may read their text more than once.
func patterns(script string) (n int, objections []string) {
	use := regexp.MustCompile(`string(?:\.|\[['"])(?:match|find|gmatch|gsub)\b.*|:(?:match|find|gmatch|gsub)\(.*`)
	plain := regexp.MustCompile(`^string\.find\([^,()]+, (?:'[^']*'|[a-z]+), (?:1|[a-z]+), true\)`)
	once := regexp.MustCompile(`^string\.match\([^,()]+, '\^(?:[a-z]|\.|\[[a-z]+\]|%-\??| |:|\\n|\(\)|\(?\.?%S\+\)? |\(?%d\+\)?(?:[ :-]|\\n|\(\)'|'))*(?:(?:\(%d\+\))?\(\.\*\)'|'?)(?:, p)?\)`)
	for script != "" {
		at := use.FindStringIndex(script)
		if at == nil {
			break
		}
		call := script[at[0]:at[1]]
		n++
		if !plain.MatchString(call) && !once.MatchString(call) {
			objections = append(objections, fmt.Sprintf("got %q, want a pattern that reads its text once", call))
		}
		script = script[at[0]+len("string.match"):]
	}
	return n, objections
}

func TestUnknownScriptPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("unknown script: got no panic")
		}
	}()
	Source("nonsense")
}

// TestCommonPath pins the text of what every push and pop runs: what a feature adds to it, those pay
// who do not use the feature. Who changes it on purpose measures (make bench) and writes the new sum.
func TestCommonPath(t *testing.T) {
	t.Parallel()
	push, pop := text(t, "push"), text(t, "pop")
	before, _, ok := strings.Cut(push, "--#include record")
	if !ok {
		t.Fatal("push.lua: got no include of record, want it after the common half")
	}
	for name, c := range map[string]struct{ text, want string }{
		"push.lua, what fresh ids run":        {before + text(t, "lib/last_score"), "902726147fe35bae"},
		"push_each.lua":                       {text(t, "push_each"), "9a23e2da62388d46"},
		"pop.lua, what a quiet shard runs":    {block(t, pop, "local quiet =", "-- alone reports") + block(t, pop, "local function reply()", "local first\n"), "ee96cc10a12ef2ae"},
		"pop.lua, take":                       {block(t, pop, "local function take(few)", "-- take_urgent adds"), "f6c154a4aaa48bcc"},
		"pop_each.lua":                        {text(t, "pop_each"), "376d8c9a7a18c252"},
		"acks: lib/finish and lib/take_out":   {text(t, "lib/finish") + text(t, "lib/take_out"), "41603634bbdeb153"},
		"what each script of a worker begins": {text(t, "lib/claimed"), "a5ad23e74ce02922"},
	} {
		code := regexp.MustCompile(`(?m)^\s*--[^#\n].*\n|\s*-- .*$`).ReplaceAllString(c.text, "") // comments cost nothing
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(code)))[:16]; got != c.want {
			t.Errorf("%s: got the sum %s, want %s: it was changed", name, got, c.want)
		}
	}
}

// block is the text from one mark up to another.
func block(t *testing.T, text, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, from)
	inside, _, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("got no text from %q to %q", from, to)
	}
	return from + inside
}
