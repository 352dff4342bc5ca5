package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/lowkiq/lowkiq"
)

func TestParseJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want lowkiq.Push
	}{
		"id only":            {`{"id":"a"}`, lowkiq.Push{ID: "a"}},
		"all fields":         {`{"id":"a","payload":{"b":1},"score":-1.5,"perform_in":1763600000}`, lowkiq.Push{ID: "a", Payload: []byte(`{"b":1}`), Score: new(-1.5), PerformAt: time.Unix(1763600000, 0)}},
		"fraction of second": {`{"id":"a","perform_in":1763600000.25}`, lowkiq.Push{ID: "a", PerformAt: time.Unix(1763600000, 250_000_000)}},
		"white space":        {" {\t\"id\" : \"a\" , \"payload\" :\r\n [ 1 , \"x y\" ] } ", lowkiq.Push{ID: "a", Payload: []byte(`[1,"x y"]`)}},
		"numbers untouched":  {`{"id":"a","payload":[1.0,10000000000000000000001,1E+2,-0]}`, lowkiq.Push{ID: "a", Payload: []byte(`[1.0,10000000000000000000001,1E+2,-0]`)}},
		"key order, repeats": {`{"id":"a","payload":{"z":1,"a":2,"z":3}}`, lowkiq.Push{ID: "a", Payload: []byte(`{"z":1,"a":2,"z":3}`)}},
		"no HTML escape":     {`{"id":"a","payload":"<&>\u003c"}`, lowkiq.Push{ID: "a", Payload: []byte(`"<&>\u003c"`)}},
		"null payload":       {`{"id":"a","payload":null}`, lowkiq.Push{ID: "a", Payload: []byte(`null`)}},
		"empty string":       {`{"id":"a","payload":""}`, lowkiq.Push{ID: "a"}},
		"raw bytes":          {`{"id":"a","payload":{ "$base64" : "AP8K" }}`, lowkiq.Push{ID: "a", Payload: []byte{0, 255, '\n'}}},
		"raw bytes, escaped": {`{"id":"a","payload":{"\u0024base64":"AP8K"}}`, lowkiq.Push{ID: "a", Payload: []byte{0, 255, '\n'}}},
		"a key besides":      {`{"id":"a","payload":{"$base64":"AP8K","b":1}}`, lowkiq.Push{ID: "a", Payload: []byte(`{"$base64":"AP8K","b":1}`)}},
		"escapes in the id":  {`{"id":"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t"}`, lowkiq.Push{ID: "é😀\"\\/\b\f\n\r\t"}},
		"id of any bytes":    {`{"id_base64":"/wA="}`, lowkiq.Push{ID: "\xff\x00"}},
		"longest id":         {`{"id":"` + strings.Repeat("x", 512) + `"}`, lowkiq.Push{ID: strings.Repeat("x", 512)}},
		"smallest score":     {`{"id":"a","score":1e-999}`, lowkiq.Push{ID: "a", Score: new(0.0)}},
		"headers":            {`{"header":{ "tag" : "v\u0069p","t":""},"id":"a"}`, lowkiq.Push{ID: "a", Header: map[string]string{"tag": "vip", "t": ""}}},
		"urgent":             {`{"id":"a","urgent":true}`, lowkiq.Push{ID: "a", Urgent: true}},
		"not urgent":         {`{"urgent":false,"id":"a"}`, lowkiq.Push{ID: "a"}},
		"no headers":         {`{"id":"a","header":{}}`, lowkiq.Push{ID: "a", Header: map[string]string{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseJob([]byte(c.text))
			if err != nil || !samePush(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func samePush(a, b lowkiq.Push) bool {
	return a.ID == b.ID && bytes.Equal(a.Payload, b.Payload) && reflect.DeepEqual(a.Score, b.Score) && a.PerformAt.Equal(b.PerformAt) && a.Urgent == b.Urgent && reflect.DeepEqual(a.Header, b.Header)
}

func TestParseJobErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                                          `line 1, column 1: unexpected end of JSON, want a job`,
		`7`:                                         `line 1, column 1: unexpected character '7', want a job`,
		`{}`:                                        `line 1, column 1: id: missing`,
		`{"payload":1}`:                             `line 1, column 1: id: missing`,
		"{\n \"id\":7}":                             `line 2, column 7: id: must be a string`,
		`{"id":null}`:                               `line 1, column 7: id: must be a string`,
		`{"id":""}`:                                 `line 1, column 7: id: is 0 bytes long, want 1 to 512`,
		`{"id":"` + strings.Repeat("x", 513):        `unexpected end of JSON, want the closing`,
		`{"id_base64":""}`:                          `id_base64: is 0 bytes long`,
		`{"id_base64":"a"}`:                         `id_base64: must be standard base64`,
		`{"id":"a","id":"b"}`:                       `line 1, column 11: field "id" given twice`,
		`{"id":"a","id_base64":"YQ=="}`:             `column 11: field "id_base64" given twice`,
		`{"id":"a","perform_at":1}`:                 `column 11: unknown field "perform_at" (known: id,`,
		`{"id":"a","urgent":"yes"}`:                 `column 20: urgent: must be true or false`,
		`{"id":"a","urgent":true,"urgent":true}`:    `column 25: field "urgent" given twice`,
		`{"id":"\ud800"}`:                           `id: half of a surrogate pair`,
		`{"id":"\ud800\u0041"}`:                     `id: half of a surrogate pair`,
		"{\"id\":\"\xff\"}":                         `column 7: id: string is not valid UTF-8`,
		"{\"id\":\"a\nb\"}":                         `column 9: id: control character '\n'`,
		`{"id":"a\x"}`:                              `column 10: id: unexpected character 'x', want an escape`,
		`{"id":"a","score":"1"}`:                    `column 19: score: must be a number`,
		`{"id":"a","score":null}`:                   `score: must be a number`,
		`{"id":"a","score":1763600000123456789}`:    `column 19: score: is an integer beyond 9007199254740992 (2^53), which would be rounded`,
		`{"id":"a","score":-9007199254740993}`:      `score: is an integer beyond`,
		`{"id":"a","score":99999999999999999999}`:   `score: is an integer beyond`,
		`{"id":"a","score":NaN}`:                    `column 19: score: unexpected character 'N'`,
		`{"id":"a","score":1e999}`:                  `column 19: score: is too large`,
		`{"id":"a","score":01}`:                     `column 20: unexpected character '1', want ',' or '}'`,
		`{"id":"a","score":-}`:                      `score: unexpected character '}', want a digit`,
		`{"id":"a","perform_in":0}`:                 `perform_in: must be an absolute time in unix seconds, 1000000000 to 8589934592`,
		`{"id":"a","perform_in":10}`:                `perform_in: must be an absolute time in unix seconds`,
		`{"id":"a","perform_in":1763600000000}`:     `perform_in: must be an absolute time in unix seconds`,
		`{"id":"a","perform_in":-1}`:                `perform_in: must be an absolute time in unix seconds`,
		`{"id":"a","perform_in":1e12}`:              `perform_in: must be an absolute time`,
		`{"id":"a","perform_in":"2026-01-01"}`:      `perform_in: must be an absolute time in unix seconds, 1000000000 to 8589934592`,
		`{"id":"a","payload":{"a":tru}}`:            `column 26: payload: unexpected character 't', want a value`,
		`{"id":"a","payload":{"a":1,}}`:             `column 28: payload: unexpected character '}', want a field's name`,
		`{"id":"a","payload":[1,]}`:                 `payload: unexpected character ']', want a value`,
		`{"id":"a","payload":{"$base64":"!"}}`:      `payload: $base64 must be`,
		`{"id":"a","payload":{"$base64":1}}`:        `payload: $base64 must be`,
		`{"id":"a"`:                                 `column 10: unexpected end of JSON, want ',' or '}'`,
		`{"id":"a"} {"id":"b"}`:                     `column 12: unexpected character '{', want the end after one job`,
		`{"id":"a","payload":` + nested(10_001):     `nested deeper than 10000`,
		`{"id":"a","header":["a"]}`:                 `column 20: header: must be an object of strings such as {"tag":"vip"}`,
		`{"id":"a","header":{"a":1}}`:               `column 25: header: value of "a": must be a string`,
		`{"id":"a","header":{"a":"1","a":"2"}}`:     `column 29: header: name "a" is given twice`,
		`{"id":"a","header":{"a b":"1"}}`:           `column 20: header: bad header: name "a b"`,
		`{"id":"a","header":{"a":"1"},"header":{}}`: `column 30: field "header" given twice`,
		`{"id":"a","header":null}`:                  `column 20: header: must be an object of strings`,
		`{"id":"a","header":{"a":"1","\u0061":""}}`: `name "\u0061" is given twice`,
		`{"id":"a","header":{"\ud800":""}}`:         `name "\ud800" is given twice, or is no text`,
		`{"id":"a","header":{"h":"\ud800"}}`:        `value of "h": half of a surrogate pair`,
		`{"id":"a","header":{"a":"","b":"` + strings.Repeat("v", 5000) + `","a":""}}`: `all are more than 4096 bytes`,
		`{"id":"a","header":{"h":"` + strings.Repeat("v", 4096) + `"}}`:               `at most 4096 are allowed`,
		"\ufeff{\"id\":\"a\"}": `column 1: a byte order mark (BOM), want a job such as {"id":"a","payload":1}: save the text as UTF-8 without one`,
	} {
		got, err := ParseJob([]byte(text))
		var bad *Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %+v, %v, want an error with %q", text, got, err, want)
		}
	}
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) + "}" }

func TestParseJobs(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"array":                 ` [ {"id":"a","payload":1} , {"id":"b","payload":[ 2 ]} ] `,
		"ndjson":                "{\"id\":\"a\",\"payload\":1}\n{\"id\":\"b\",\"payload\":[2]}\n",
		"ndjson, blank lines":   "\n\n{\"id\":\"a\",\"payload\":1}\r\n\r\n{\"id\":\"b\",\"payload\":[2]}",
		"objects over lines":    "{\"id\":\"a\",\n\"payload\":1}\n{\"id\":\"b\",\"payload\":[\n2]}",
		"array with blank ends": "\n[{\"id\":\"a\",\"payload\":1},\n{\"id\":\"b\",\"payload\":[2]}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseJobs([]byte(body))
			if err != nil || len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
				t.Fatalf("got %+v, %v, want jobs a and b", got, err)
			}
			got[0].Payload = append(got[0].Payload, 'x')
			if string(got[1].Payload) != `[2]` {
				t.Errorf("got %q, want [2]: payloads must not share their tails", got[1].Payload)
			}
		})
	}
	if got, err := ParseJobs([]byte(`[]`)); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v, want no job of an empty array", got, err)
	}
}

func TestParseJobsErrors(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"":                                      `line 1, column 1: unexpected end`,
		"{\"id\":\"a\"}\n{\"id\":}":             `line 2, column 7: id: unexpected character '}'`,
		"{\"id\":\"a\"}{\"id\":\"b\"}":          `line 1, column 11: unexpected character '{', want a newline between two jobs`,
		"{\"id\":\"a\"}\n[{\"id\":\"b\"}]":      `line 2, column 1: unexpected character '[', want a job`,
		"[{\"id\":\"a\"},\n{\"score\":1}]":      `line 2, column 1: [1].id: missing`,
		"[{\"id\":\"a\"},\n7]":                  `line 2, column 1: [1]: unexpected character '7', want a job`,
		"[{\"id\":\"a\"},{\"id\":\"b\",\"x\":1": `line 1, column 23: [1]: unknown field "x"`,
		`[{"id":"a"}`:                           `column 12: unexpected end of JSON, want ',' or ']'`,
		`[{"id":"a"}] x`:                        `column 14: unexpected character 'x', want the end`,
	} {
		got, err := ParseJobs([]byte(body))
		if got != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want an error with %q", body, got, err, want)
		}
	}
}

func TestScanner(t *testing.T) {
	t.Parallel()
	long := fmt.Sprintf(`{"id":"long","payload":%q}`, strings.Repeat("x", 100_000))
	text := "{\"id\":\"1\"}\n\n \t\nbad\n" + long + "\n" + long + long + "\n{\"id\":\"7\"}\r\n{\"id\":\"8\"}"
	want := []string{"1 1", "4 line 4, column 1: unexpected character 'b', want a job such as {\"id\":\"a\",\"payload\":1}", "5 long",
		"6 line 6, column 150001: line is longer than 150000 bytes", "7 7", "8 8"}
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "by bytes": iotest.OneByteReader(strings.NewReader(text)), "end with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScanner(r, 150_000)
			var got []string
			for {
				line, p, err := s.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					p.ID = err.Error()
				}
				got = append(got, fmt.Sprint(line, " ", p.ID))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestScannerPassesOnReadErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	s := NewScanner(io.MultiReader(strings.NewReader("{\"id\":\"a\"}\n{"), iotest.ErrReader(lost)), 100)
	if _, p, err := s.Next(); err != nil || p.ID != "a" {
		t.Errorf("got %v, %v, want job a", p, err)
	}
	if _, _, err := s.Next(); !errors.Is(err, lost) || err.Error() != "read line 2: lost" {
		t.Errorf("got %v, want the reader's error with the line", err)
	}
}

func TestScannerKeepsNothingOfALongLine(t *testing.T) {
	t.Parallel()
	s := NewScanner(io.LimitReader(endless{}, 64<<20), 1000)
	if _, _, err := s.Next(); err == nil || !strings.Contains(err.Error(), "longer than 1000") {
		t.Errorf("got %v, want a line that is too long", err)
	}
	if cap(s.buf) > 256<<10 {
		t.Errorf("got a buffer of %d bytes, want it bounded by the limit", cap(s.buf))
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// FuzzParseJob compares the lexer with encoding/json: what is read is JSON, the
// payload is json.Compact's, and comes back the same from a batch.
func FuzzParseJob(f *testing.F) {
	for _, seed := range []string{
		`{"id":"a","payload":{"a":[1,-2.5e+3,"x\u00e9\ud83d\ude00",true,false,null]},"score":1,"perform_in":1.5}`,
		`{"id":"a","payload":{"$base64":"AP8="}}`, `{"id":"a","payload": [ 1 , { } , [ ] ] }`, `{"id":"a","payload":"\\\""}`, `{"id":"a","payload":01}`,
		"{\"id\":\"a\",\"payload\":\"\xff\"}", `{"id":"a","payload":"\ud800"}`, `{"id":"a","payload":1.}`, `{"id":"a","payload":"\u00g0"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseJob(text)
		if err != nil {
			return
		}
		var reference struct{ Payload json.RawMessage }
		if err := json.Unmarshal(text, &reference); err != nil {
			t.Fatalf("accepted %q, encoding/json says %v", text, err)
		}
		var compacted bytes.Buffer
		if reference.Payload != nil && json.Compact(&compacted, reference.Payload) != nil {
			t.Fatalf("payload of %q is not JSON", text)
		}
		if _, raw := bytesEnvelope(compacted.Bytes()); !raw && compacted.String() != `""` && !bytes.Equal(p.Payload, compacted.Bytes()) {
			t.Fatalf("got payload %q, want %q", p.Payload, compacted.Bytes())
		}
		roundTrip(t, p.Payload)
	})
}

// FuzzLexer checks that the lexer accepts what encoding/json accepts, and no more,
// for text that is UTF-8.
func FuzzLexer(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5E-3,"\n\u12aF"]}`, ` [ ] `, `-`, `-0`, `00`, `1.e1`, `"\u12g4"`, "\"\x01\"", `{"a" 1}`, `[1 2]`, `tru`, `"\u123`, `{,}`, "\"\u2028\""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		l := lexer{src: []byte(text)}
		l.skipSpace()
		err := l.skipValue(0)
		l.skipSpace()
		got := err == nil && l.pos == len(text)
		if want := json.Valid([]byte(text)); got != want {
			t.Errorf("%q: got valid %t (%v), want %t", text, got, err, want)
		}
	})
}

func BenchmarkParseJob(b *testing.B) {
	line := []byte(`{"id":"internal/store/store.go","payload":{"commit":"0123456789abcdef","added":12,"removed":3,"author":"someone"},"score":1763600000.25}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseJob(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseJobs(b *testing.B) {
	line := []byte(`{"id":"internal/store/store.go","payload":{"commit":"0123456789abcdef","added":12,"removed":3,"author":"someone"}}` + "\n")
	body := bytes.Repeat(line, 1000)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := ParseJobs(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanner(b *testing.B) {
	line := []byte(`{"id":"internal/store/store.go","payload":{"commit":"0123456789abcdef","added":12,"removed":3,"author":"someone"}}` + "\n")
	body := bytes.Repeat(line, 1000)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		for s := NewScanner(bytes.NewReader(body), 1<<20); ; {
			if _, _, err := s.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// TestParseJobsBounded checks that a body has a bounded number of jobs. Many small jobs would take much more memory
// than the body has bytes.
func TestParseJobsBounded(t *testing.T) {
	t.Parallel()
	line := "{\"id\":\"a\"}\n"
	for name, body := range map[string]string{
		"lines": strings.Repeat(line, MaxJobs),
		"array": "[" + strings.Repeat(`{"id":"a"},`, MaxJobs-1) + `{"id":"a"}]`,
	} {
		if jobs, err := ParseJobs([]byte(body)); err != nil || len(jobs) != MaxJobs {
			t.Errorf("%s: got %d jobs, %v, want %d", name, len(jobs), err, MaxJobs)
		}
		more := body + line
		if name == "array" {
			more = strings.TrimSuffix(body, "]") + "," + strings.TrimSpace(line) + "]"
		}
		if _, err := ParseJobs([]byte(more)); err == nil || !strings.Contains(err.Error(), "at most 100000 jobs; send it in parts") {
			t.Errorf("%s: got %v, want what is too much", name, err)
		}
	}
}
