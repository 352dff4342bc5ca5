package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// told is what has been answered, for people.
func told(said map[string]lowkiq.Answered) string {
	var all strings.Builder
	for _, id := range slices.Sorted(maps.Keys(said)) {
		fmt.Fprintf(&all, "[%q: result %q, state %q, stated %t]", id, said[id].Result, said[id].State, said[id].Stated)
	}
	return all.String()
}

// A job's callers and state come with it, and nothing does where there are none.
func TestAppendBatchStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		callers int
		state   []byte
		want    string // after the payloads
	}{
		"neither":             {0, nil, ``},
		"callers":             {2, nil, `,"callers":2`},
		"both":                {1, []byte(`{"n":1.0}`), `,"callers":1,"state":{"n":1.0}`},
		"zero bytes":          {0, []byte{}, `,"state":""`},
		"text":                {0, []byte("41 of 42"), `,"state":{"$base64":"NDEgb2YgNDI="}`},
		"no UTF-8":            {0, []byte("\xff\n"), `,"state":{"$base64":"/wo="}`},
		"a JSON string":       {0, []byte(`"s"`), `,"state":"s"`},
		"quotes only":         {0, []byte(`""`), `,"state":{"$base64":"IiI="}`},
		"null":                {0, []byte(`null`), `,"state":{"$base64":"bnVsbA=="}`},
		"JSON on two lines":   {0, []byte("{\n\"n\": 1}\n"), `,"state":{"$base64":"ewoibiI6IDF9Cg=="}`},
		"looks like raw":      {0, []byte(`{"$base64":"eA=="}`), `,"state":{"$base64":"eyIkYmFzZTY0IjoiZUE9PSJ9"}`},
		"white space in text": {0, []byte(`"a b"`), `,"state":"a b"`},
	} {
		b := one("1")
		b.Jobs[0].Callers, b.Jobs[0].State = c.callers, c.state
		text := AppendBatch(nil, b)
		if want := `"payloads":[{"score":1,"payload":1}]` + c.want + `}]}`; !strings.HasSuffix(string(text), want) {
			t.Errorf("%s: got  %s\nwant …%s", name, text, want)
		}
		if got, err := ParseBatch(text); err != nil || !reflect.DeepEqual(got, b) {
			t.Errorf("%s: read again: got %+v, %v, want %+v", name, got, err, b)
		}
	}
	for text, want := range map[string]string{
		`{"queue":"q","jobs":[{"id":"a","callers":-1}]}`:               `job "a": callers: -1, want 0 or more`,
		`{"queue":"q","jobs":[{"id":"a","callers":"1"}]}`:              `Callers`,
		`{"queue":"q","jobs":[{"id":"a","state":{"$base64":"?"}}]}`:    `job "a": state: $base64 must be`,
		`{"queue":"q","jobs":[{"id":"a","state":{"$base64":null}}]}`:   `job "a": state: $base64 must be`,
		`{"queue":"q","jobs":[{"id":"a","state":` + "\"\xff\"" + `}]}`: `state: string is not valid UTF-8`,
	} {
		if got, err := ParseBatch([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %q", text, got, err, want)
		}
	}
	if got, err := ParseBatch([]byte(`{"queue":"q","jobs":[{"id":"a","state":null}]}`)); err != nil || got.Jobs[0].State != nil {
		t.Errorf("a null state: got %+v, %v, want none", got, err)
	}
}

// FuzzState checks that a state comes back from a handler as it was, also from a handler that knows nothing of it and
// answers with the batch that it was sent.
func FuzzState(f *testing.F) {
	for _, seed := range []string{"", `""`, `null`, ` null`, `{"a":[1,"\n"]}`, `{"a": 1}`, "hello", "\x00\xff", `{"$base64":"eA=="}`, `{ "$base64" : 1 }`, "1\n", "\"\u2028\"", `{"\u0024base64":"eA=="}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, state []byte) {
		if state == nil {
			state = []byte{}
		}
		b := one("1")
		b.Jobs[0].State = state
		text := AppendBatch(nil, b)
		if bytes.IndexByte(text, '\n') >= 0 || !json.Valid(text) {
			t.Fatalf("%q: got %q, want one line of JSON", state, text)
		}
		read, err := ParseBatch(text)
		if err != nil || !reflect.DeepEqual(read, b) {
			t.Fatalf("%q: got %+v, %v of %s, want it back", state, read, err, text)
		}
		_, sent, _ := bytes.Cut(bytes.TrimSuffix(text, []byte(`}]}`)), []byte(`,"state":`))
		if err := ParseAnswer(fmt.Appendf(nil, `{"ok":true,"answers":{"a":{"result":%s,"state":%s}}}`, sent, sent), b); len(state) <= lowkiq.MaxStateBytes {
			want := map[string]lowkiq.Answered{"a": {Result: state, State: state, Stated: true}}
			if got := b.Answers(); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: got %s, %v back from %s", state, told(got), err, sent)
			}
		}
	})
}

// What an answer says of jobs is what a Go handler would have said of them.
func TestParseAnswers(t *testing.T) {
	t.Parallel()
	said := func(of ...any) map[string]lowkiq.Answered {
		all := map[string]lowkiq.Answered{}
		for i := 0; i < len(of); i += 2 {
			all[of[i].(string)] = of[i+1].(lowkiq.Answered)
		}
		return all
	}
	result := func(text string) lowkiq.Answered { return lowkiq.Answered{Result: []byte(text)} }
	for text, c := range map[string]struct {
		want string // of the error
		said map[string]lowkiq.Answered
	}{
		`{"ok":true,"answers":{}}`:                                                        {"", nil},
		`{"ok":true,"answers":{"a":{}}}`:                                                  {"", nil},
		`{"answers":{"a":{"result":1}},"ok":true,"flight":17}`:                            {"", said("a", result("1"))},
		`{"ok":true,"answers":{"a":{"result": {"p" : [1.0, 2]} }}}`:                       {"", said("a", result(`{"p":[1.0,2]}`))},
		`{"ok":true,"answers":{"a":{"result":null}}}`:                                     {"", said("a", result("null"))},
		`{"ok":true,"answers":{"a":{"result":""}}}`:                                       {"", said("a", result(""))},
		`{"ok":true,"answers":{"a":{"result":{"$base64":"/w=="}}}}`:                       {"", said("a", result("\xff"))},
		`{"ok":true,"answers":{"a":{"result":{"$base64":""}}}}`:                           {"", said("a", result(""))},
		`{"ok":true,"answers":{"a":{"state":{"n":1}}}}`:                                   {"", said("a", lowkiq.Answered{State: []byte(`{"n":1}`), Stated: true})},
		`{"ok":true,"answers":{"a":{"state":""}}}`:                                        {"", said("a", lowkiq.Answered{State: []byte{}, Stated: true})},
		`{"ok":true,"answers":{"a":{"state":null}}}`:                                      {"", said("a", lowkiq.Answered{Stated: true})},
		`{"ok":true,"answers":{"a":{"state":{"$base64":"bnVsbA=="}}}}`:                    {"", said("a", lowkiq.Answered{State: []byte("null"), Stated: true})},
		`{"ok":true,"answers":{"a":{"state":1,"result":2}}}`:                              {"", said("a", lowkiq.Answered{Result: []byte("2"), State: []byte("1"), Stated: true})},
		`{"ok":true,"answers":{"a":{"result":1}},"answers_base64":{"/w==":{"result":2}}}`: {"", said("a", result("1"), "\xff", result("2"))},
		// Beside failures the others are done; what is said of a job that is not does not count.
		`{"failed":{"\u0061":"x"},"answers_base64":{"/w==":{"result":2},"YQ==":{"result":1}}}`: {"a: x", said("\xff", result("2"))},
		`{"bury":{"a":"x"},"answers_base64":{"/w==":{"state":null}}}`:                          {"a: x", said("\xff", lowkiq.Answered{Stated: true})},
		`{"failed":{},"answers":{"a":{"result":1}}}`:                                           {"", said("a", result("1"))},
		`{"ok":false,"error":"x","answers":{"a":{"result":1}}}`:                                {"x", nil},
		`{"ok":false,"error":"x","answers":{"c":{"result":1}}}`:                                {"x", nil},
		// Nothing of what is refused counts.
		`{"ok":true,"answers":{"a":{"result":1},"c":{"result":1}}}`:                                                            {`handler answered about "c", which is not in the batch: all of it counts as failed`, nil},
		`{"failed":{"c":"x"},"answers":{"a":{"result":1}}}`:                                                                    {`handler named "c" as failed, which is not in the batch`, nil},
		`{"failed":{"a":"x"},"answers":{"c":{"result":1}}}`:                                                                    {`handler answered about "c"`, nil},
		`{"answers":{"a":{"result":1}}}`:                                                                                       {`answer has neither "ok" nor "failed" nor "bury"`, nil},
		`{"ok":true,"failed":{},"answers":{"a":{"result":1}}}`:                                                                 {`both "ok" and "failed"`, nil},
		`{"ok":true,"error":"x","answers":{"a":{"result":1}}}`:                                                                 {`error: given although "ok" is true`, nil},
		`{"ok":true,"flight":16,"answers":{"a":{"result":1}}}`:                                                                 {`flight: is 16, but the batch has 17`, nil},
		`{"ok":true,"answers":[1]}`:                                                                                            {`line 1, column 22: answers: must be an object of ids and what is said of them`, nil},
		`{"ok":true,"answers":null}`:                                                                                           {`answers: must be an object of ids`, nil},
		`{"ok":true,"answers":{"a":1}}`:                                                                                        {`line 1, column 23: answers: id "a": must be an object with a result, a state, follow-ups or some of them`, nil},
		`{"ok":true,"answers":{"a":null}}`:                                                                                     {`answers: id "a": must be an object with`, nil},
		`{"ok":true,"answers":{"a":{"result":1,"reslt":2}}}`:                                                                   {`line 1, column 39: answers: id "a": unknown field "reslt" (known: result, state, then)`, nil},
		`{"ok":true,"answers":{"a":{"result":1,"result":2}}}`:                                                                  {`line 1, column 39: answers: id "a": result: given twice`, nil},
		`{"ok":true,"answers":{"a":{"state":null,"state":2}}}`:                                                                 {`answers: id "a": state: given twice`, nil},
		`{"ok":true,"answers":{"a":{"result":1},"a":{"state":2}}}`:                                                             {`line 1, column 40: answers: id "a" is answered twice`, nil},
		`{"ok":true,"answers":{"a":{}},"answers_base64":{"YQ==":{}}}`:                                                          {`answers_base64: id "a" is answered twice`, nil},
		`{"ok":true,"answers":{"a":{}},"answers":{}}`:                                                                          {`answers: given twice`, nil},
		`{"ok":true,"answers":{"a":{"result":1,"then":[{"queue":"mail"}]}}}`:                                                   {`line 1, column 47: answers: id "a": then: [0].id: missing`, nil},
		`{"ok":true,"answers":{"a":{"then":[{"id":"u"}]}}}`:                                                                    {`answers: id "a": then: [0].queue: missing`, nil},
		`{"ok":true,"answers":{"a":{"then":[{"queue":"m","id":"u"},{"queue":"m","id":"u","reply_to":"x"}]}}}`:                  {`answers: id "a": then: [1]: unknown field "reply_to"`, nil},
		`{"ok":true,"answers":{"a":{"then":[{"queue":"m","queue":"n","id":"u"}]}}}`:                                            {`answers: id "a": then: [0]: field "queue" given twice`, nil},
		`{"ok":true,"answers":{"a":{"then":{"queue":"m"}}}}`:                                                                   {`answers: id "a": then: must be an array of pushes with their queues`, nil},
		`{"ok":true,"answers":{"a":{"then":[],"then":[]}}}`:                                                                    {`answers: id "a": then: given twice`, nil},
		`{"ok":true,"answers":{"a":{"then":[` + strings.Repeat(`{"queue":"m","id":"u"},`, 1000) + `{"queue":"m","id":"u"}]}}}`: {`answers: id "a": then: a job has at most 1000 follow-ups`, nil},
		`{"ok":true,"answers":{"a":{"result":{"$base64":"?"}}}}`:                                                               {`answers: id "a": result: $base64 must be a string of standard base64 with padding`, nil},
		`{"ok":true,"answers":{"a":{"state":{"$base64":1}}}}`:                                                                  {`answers: id "a": state: $base64 must be`, nil},
		`{"ok":true,"answers":{"a":{"state":nope}}}`:                                                                           {`answers: id "a": state: unexpected character 'n'`, nil},
		`{"ok":true,"answers":{"a":{"result":tru}}}`:                                                                           {`column 37: answers: id "a": result: unexpected character 't', want a value`, nil},
		`{"ok":true,"answers":{"\ud800":{}}}`:                                                                                  {`answers: half of a surrogate pair`, nil},
		`{"ok":true,"answers_base64":{"?":{}}}`:                                                                                {`answers_base64: must be standard base64`, nil},
		`{"ok":true,"answers":{"a":{"result":1}}`:                                                                              {`want ',' or '}'`, nil},
	} {
		b := one("1")
		b.Jobs = append(b.Jobs, lowkiq.Job{ID: "\xff"})
		err := ParseAnswer([]byte(text), b)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", text, err, c.want)
		}
		if got := b.Answers(); len(got)+len(c.said) > 0 && !reflect.DeepEqual(got, c.said) {
			t.Errorf("%s: got %s answered, want %s", text, told(got), told(c.said))
		}
	}
}

// A result or state that is too long fails its job alone, as that of a Go handler does; an error that
// its handler has given stays. The greatest ones fit.
func TestParseAnswersTooLong(t *testing.T) {
	t.Parallel()
	raw := func(size int) string {
		return `{"$base64":"` + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, size)) + `"}`
	}
	text := func(size int) string { return `"` + strings.Repeat("x", size-2) + `"` }
	for name, c := range map[string]struct {
		field, value, want string
	}{
		"result, bytes":           {"result", raw(lowkiq.MaxResultBytes), ""},
		"result, text":            {"result", text(lowkiq.MaxResultBytes), ""},
		"state, bytes":            {"state", raw(lowkiq.MaxStateBytes), ""},
		"state, text":             {"state", text(lowkiq.MaxStateBytes), ""},
		"result, a byte too many": {"result", raw(lowkiq.MaxResultBytes + 1), "its result is 262145 bytes, at most 262144 are allowed"},
		"text, a byte too many":   {"result", text(lowkiq.MaxResultBytes + 1), "its result is 262145 bytes, at most 262144 are allowed"},
		"state, a byte too many":  {"state", raw(lowkiq.MaxStateBytes + 1), "its state is 65537 bytes, at most 65536 are allowed"},
	} {
		b := one("1")
		b.Jobs = append(b.Jobs, lowkiq.Job{ID: "b"})
		err := ParseAnswer(fmt.Appendf(nil, `{"ok":true,"answers":{"a":{%q:%s},"b":{"result":2}}}`, c.field, c.value), b)
		var failed lowkiq.Failed
		said := b.Answers()
		if string(said["b"].Result) != "2" {
			t.Errorf("%s: got %d answers, want that of the other job", name, len(said))
		}
		if c.want == "" {
			if err != nil || len(said) != 2 {
				t.Errorf("%s: got %v and %d answers, want both", name, err, len(said))
			}
			continue
		}
		if _, ok := said["a"]; ok || !errors.As(err, &failed) || len(failed) != 1 || failed["a"].Error() != c.want {
			t.Errorf("%s: got %v and %d answers, want the job, and only it, to fail", name, err, len(said))
		}
		b = one("1")
		err = ParseAnswer(fmt.Appendf(nil, `{"bury":{"a":"x"},"answers":{"a":{%q:%s}}}`, c.field, c.value), b)
		var bury lowkiq.Bury
		if !errors.As(err, &bury) || bury.Reason != "x" || len(b.Answers()) != 0 {
			t.Errorf("%s: got %v and %d answers, want it buried", name, err, len(b.Answers()))
		}
	}
}

// Of ids that are not in the batch no more are kept than tell that there is one: there may be very many.
func TestParseAnswersOfStrangers(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, `,"id-%d":{"result":1}`, i)
	}
	d := decoder{lexer: lexer{src: []byte(`{"ok":true,"answers":{` + text.String()[1:] + `}}`)}}
	if a, err := d.decodeAnswer(2); err != nil || len(a.said) != 2 {
		t.Errorf("got %d, %v, want 2", len(a.said), err)
	}
	d = decoder{lexer: lexer{src: []byte(`{"failed":{` + strings.ReplaceAll(text.String()[1:], `{"result":1}`, `""`) + `}}`)}}
	if a, err := d.decodeAnswer(2); err != nil || len(a.failed) != 2 {
		t.Errorf("got %d, %v, want 2", len(a.failed), err)
	}
}

// The exec and the HTTP path take nothing from the heap for a batch and an answer that say no more
// than ever.
func TestPlainAnswersAllocateNothing(t *testing.T) { //nolint:paralleltest // it counts allocations
	batch, buf, done := one(`{"n":1}`), make([]byte, 0, 1<<10), []byte(`{"ok":true}`)
	if n := testing.AllocsPerRun(100, func() {
		buf = AppendBatch(buf[:0], batch)
		if err := ParseAnswer(done, batch); err != nil {
			t.Error(err)
		}
	}); n != 0 || batch.Answers() != nil {
		t.Errorf("got %v allocations and answers %v, want none", n, batch.Answers())
	}
}

func BenchmarkParseAnswers(b *testing.B) {
	batch := one("1")
	text := []byte(`{"ok":true,"answers":{"a":{"result":{"price":3},"state":{"n":42}}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseAnswer(text, batch); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAnswerLater checks that an answer puts its batch back, or holds a group back, like HTTP 429. A contradictory
// answer is invalid.
func TestAnswerLater(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		`{"ok":false,"retry_after":30}`:                                     lowkiq.Postpone{After: 30 * time.Second, Reason: "its handler answered retry_after"},
		`{"ok":false,"retry_after":0,"error":"busy"}`:                       lowkiq.Postpone{After: time.Second, Reason: "busy"},
		`{"ok":false,"retry_after":9223372036854775807,"limit":"acme:"}`:    lowkiq.Throttle{Prefix: "acme:", For: 24 * time.Hour},
		`{"ok":false,"retry_after":30,"limit":"acme:","error":"429","x":1}`: nil,
		`{"ok":false,"retry_after":30,"limit":"acme:","error":"429"}`:       lowkiq.Throttle{Prefix: "acme:", For: 30 * time.Second},
		`{"ok":false,"retry_after":30,"limit":""}`:                          lowkiq.Throttle{For: 30 * time.Second},
		`{"ok":true,"retry_after":30}`:                                      nil,
		`{"retry_after":30}`:                                                nil,
		`{"ok":false,"limit":"acme:"}`:                                      nil,
		`{"failed":{"a":"x"},"retry_after":30}`:                             nil,
		`{"ok":false,"failed":{"a":"x"},"retry_after":30}`:                  nil,
		`{"ok":false,"retry_after":-1}`:                                     nil,
		`{"ok":false,"retry_after":"30"}`:                                   nil,
		`{"ok":false,"retry_after":1e400}`:                                  nil,
		`{"ok":false,"retry_after":30,"limit":7}`:                           nil,
		`{"ok":false,"retry_after":30,"retry_after":31}`:                    nil,
	} {
		got := ParseAnswer([]byte(text), lowkiq.NewBatch(lowkiq.Shard{}, 0, 1, []lowkiq.Job{{ID: "a"}}))
		var nonsense *Error
		if bad := errors.As(got, &nonsense); want == nil && !bad || want != nil && got != want { //nolint:errorlint // plain values
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}
