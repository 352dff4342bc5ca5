package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestAppendBatch(t *testing.T) {
	t.Parallel()
	want := `{"queue":"history","shard":3,"fence":1763600000123,"flight":17,"jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":{"b":1}}]}]}`
	if got := string(AppendBatch(nil, one(`{"b":1}`))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b := one("x")
	b.Jobs = append(b.Jobs, lowkiq.Job{ID: "\xff", RetryCount: 2, Payloads: []lowkiq.Payload{{Score: 0.5}, {Score: 1763600000.123456, Data: []byte("1")}}})
	b.Jobs[1].Payloads[1].Header = `{"h":"1","tag":"vip"}`
	want = `"jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":{"$base64":"eA=="}}]},` +
		`{"id_base64":"/w==","retry_count":2,"payloads":[{"score":0.5,"payload":""},{"score":1763600000.123456,"payload":1,"header":{"h":"1","tag":"vip"}}]}]}`
	if got := string(AppendBatch(nil, b)); !strings.HasSuffix(got, want) {
		t.Errorf("got  %s\nwant …%s", got, want)
	}
}

// What Redis has in the place of headers, whoever put it there, leaves a batch one line of JSON.
func TestAppendHeader(t *testing.T) {
	t.Parallel()
	for header, want := range map[lowkiq.Header]string{
		`{"tag":"vip"}`: `,"header":{"tag":"vip"}`, "{ \"a b\" :\n\"c d\" }": `,"header":{"a b":"c d"}`, `{}`: `,"header":{}`,
		"{}\n{": "", `{"a":1}`: "", `{"a":"b"},"ok":{}`: "", `{"a":"b"`: "", `[]`: "", `null`: "", "{\"a\":\"\xff\"}": "", "\n": "", "{\"a\":\"\n\"}": "",
	} {
		b := lowkiq.Batch{Jobs: []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: []byte("1"), Header: header}}}}}
		line := string(AppendBatch(nil, &b))
		if !strings.Contains(line, `"payload":1`+want+`}]`) || strings.Contains(line, "\n") || !json.Valid([]byte(line)) {
			t.Errorf("%q: got %s, want %q beside the payload", header, line, want)
		}
	}
}

func TestAppendPayload(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ data, want string }{
		"zero bytes":          {"", `""`},
		"JSON":                {`{"b":[1.0,"<>"]}`, `{"b":[1.0,"<>"]}`},
		"JSON on two lines":   {"{\n\"b\": 1}\n", `{"b":1}`},
		"text":                {"hello", `{"$base64":"aGVsbG8="}`},
		"quotes only":         {`""`, `""`},
		"quotes and a space":  {` ""`, `""`},
		"looks like raw":      {`{"$base64":"eA=="}`, `{"$base64":"eyIkYmFzZTY0IjoiZUE9PSJ9"}`},
		"looks like raw, \\u": {`{"\u0024base64":1}`, `{"$base64":"eyJcdTAwMjRiYXNlNjQiOjF9"}`},
		"JSON and more":       {`1 2`, `{"$base64":"MSAy"}`},
		"not UTF-8":           {"\"\xff\"", `{"$base64":"Iv8i"}`},
	} {
		if got := string(AppendPayload(nil, []byte(c.data))); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// roundTrip checks that a payload comes back from its wire form as it was, up to
// white space of JSON, and keeps to one line.
func roundTrip(t *testing.T, data []byte) {
	t.Helper()
	text := AppendPayload(nil, data)
	if bytes.ContainsAny(text, "\n\r") || !json.Valid(text) {
		t.Fatalf("%q: got %q, want one line of JSON", data, text)
	}
	p, err := ParseJob(append(append([]byte(`{"id":"a","payload":`), text...), '}'))
	want := data
	if !bytes.HasPrefix(text, []byte(`{"$base64":`)) && len(data) > 0 {
		var compacted bytes.Buffer
		if err := json.Compact(&compacted, data); err != nil {
			t.Fatalf("%q is no JSON, but was written as %q", data, text)
		}
		if want = compacted.Bytes(); string(want) == `""` { // the empty text is no bytes
			want = nil
		}
	}
	if err != nil || !bytes.Equal(p.Payload, want) {
		t.Fatalf("%q: got %q, %v, want it back", data, p.Payload, err)
	}
}

// What is pushed in base64 arrives in base64, also if it could be read as JSON, and keeps its bytes.
func TestBytesStayBytes(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", `""`, "5", "null", ` {"a": 1, "a": 2} `, "1.00000000000000000000000001", `{"$base64":"eA=="}`, "\x04\b0", "\x1f\x8b", "hello"} {
		text := string(appendBase64(nil, []byte(data)))
		p, err := ParseJob([]byte(`{"header":{"tag":"vip"},"payload":` + text + `,"id":"a"}`))
		if err != nil || string(p.Payload) != data || p.Header["tag"] != "vip" {
			t.Errorf("%q: got %+v, %v", data, p, err)
			continue
		}
		if got := string(AppendPushed(nil, &p)); got != text {
			t.Errorf("%q: pushed on as %s, want %s", data, got, text)
		}
		header, err := lowkiq.NewHeader(p.Header)
		if err != nil {
			t.Fatal(err)
		}
		b := lowkiq.Batch{Shard: lowkiq.Shard{Queue: "q"}, Jobs: []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: p.Payload, Header: header}}}}}
		line := AppendBatch(nil, &b)
		if !strings.Contains(string(line), `"payload":`+text) {
			t.Errorf("%q: a batch has %s, want %s", data, line, text)
		}
		if back, err := ParseBatch(line); err != nil || string(back.Jobs[0].Payloads[0].Data) != data || back.Jobs[0].Payloads[0].Header != header {
			t.Errorf("%q: read back as %+v, %v", data, back, err)
		}
	}
	if p, err := ParseJob([]byte(`{"id":"a","payload":{"$base64":"AP8K"}}`)); err != nil || p.Header != nil {
		t.Errorf("bytes that are no JSON have the headers %v, %v; want none", p.Header, err)
	}
}

func FuzzAppendPayload(f *testing.F) {
	for _, seed := range []string{"", `""`, `{"a": [1, "\n"]}`, "hello", "\x00\xff", `{"$base64":"eA=="}`, `{ "$base64" : 1 }`, "[\n]", "\"\u2028\"", ` ""`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(roundTrip)
}

// FuzzParseBatch checks that a batch, however it is spelt, reads the same after it is read and written.
func FuzzParseBatch(f *testing.F) {
	for _, seed := range []string{
		`{"queue":"orders","shard":3,"fence":1763600000000,"flight":17,"jobs":[{"id":"a","payloads":[{"score":1.5,"payload":{"n":1}},{"score":2,"payload":{"$base64":"/wA="}}],"perform_in":1763600000.000001,"retry_count":-1,"error":""}]}`,
		`{"queue":"q","jobs":[{"id_base64":"/w==","payloads":[{"score":1e18,"payload":"text"}]}]}`, `{"queue":"q","jobs":[{}]}`, `{"queue":"q","jobs":[null]}`,
		`{"queue":"q","jobs":[{"id":"a","payloads":[{}]}]}`, `{"queue":"q","jobs":[{"id":"a","payloads":[{"score":null,"payload":""}]}]}`,
		`{"queue":"q","shard":-1,"jobs":[{"id":"a","payloads":[{"payload":{"$base64":"x"}}]}]}`, `{"queue":"","jobs":[]}`, `{}`, ``, `[`,
		`{"queue":"q","jobs":[{"payloads":[{"payload":{"$base64":""}}]}]}`,
		`{"queue":"q","jobs":[{"id":"a","callers":2,"state":{"n":1}}]}`, `{"queue":"q","jobs":[{"callers":-1}]}`, `{"queue":"q","jobs":[{"state":null},{"state":""},{"state":{"$base64":"bnVsbA=="}},{"state":[ 1 ]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		batch, err := ParseBatch(text)
		if err != nil {
			return
		}
		written := AppendBatch(nil, batch)
		again, err := ParseBatch(written)
		if err != nil {
			t.Fatalf("%q was read, and written as %q: %v", text, written, err)
		}
		if !reflect.DeepEqual(again, batch) {
			t.Errorf("%q: got %+v, written and read again %+v", text, batch, again)
		}
	})
}

func FuzzAppendString(f *testing.F) {
	for _, seed := range []string{"", "a\"\\\n\x00\x1f", "\xff\xfeé\ufffd", "😀\u2028<&>"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		text := appendString(nil, s)
		if err := json.Unmarshal(text, &got); err != nil || got != string([]rune(s)) {
			t.Fatalf("%q: got %q from %q, %v", s, got, text, err)
		}
	})
}

func TestAppendJob(t *testing.T) {
	t.Parallel()
	j := one(`7`).Jobs[0]
	j.PerformAt, j.Error = time.UnixMicro(1763600000_123456), "bad \"thing\"\n\x01\xff"
	want := `{"id":"a","payloads":[{"score":1,"payload":7}],"perform_in":1763600000.123456,"retry_count":-1,"error":"bad \"thing\"\n\u0001` + "\ufffd" + `"}`
	if got := string(AppendJob(nil, &j)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	j = lowkiq.Job{ID: "b", Payloads: []lowkiq.Payload{{Score: math.Inf(1)}, {Score: 1e-7}, {Score: 1e300}}}
	want = `{"id":"b","payloads":[{"score":null,"payload":""},{"score":1e-07,"payload":""},{"score":1e+300,"payload":""}],"perform_in":null,"retry_count":0,"error":""}`
	if got := string(AppendJob(nil, &j)); got != want || !json.Valid([]byte(got)) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseAnswer(t *testing.T) {
	t.Parallel()
	b := one("1")
	b.Jobs = append(b.Jobs, lowkiq.Job{ID: "\xff"})
	for text, want := range map[string]string{
		`{"ok":true}`:                           ``,
		` { "ok" : true } `:                     ``,
		`{"failed":{}}`:                         ``,
		`{"ok":false,"error":"no luck"}`:        `no luck`,
		`{"ok":false}`:                          `handler answered ok: false, without an error`,
		`{"failed":{"a":"x"}}`:                  `a: x`,
		`{"failed_base64":{"/w==":"y"}}`:        "\xff: y",
		`{"bury":{"a":"x"}}`:                    `a: x`,
		`{"failed":{"a":"x","a":"y"}}`:          `failed: id "a" is named twice`,
		`{"failed":{"a":"x"},"bury":{"a":"y"}}`: `bury: id "a" is named twice`,
		`{"failed":{"a":"x"},"error":"y"}`:      `error: given beside "failed"`,
		`{"ok":false,"ok":true}`:                `ok: given twice`,
		`{"bury":{"c":"x"}}`:                    `handler named "c" as failed, which is not in the batch`,
		`{"ok":true,"bury":{}}`:                 `both "ok" and "failed" or "bury"`,
		`{"ok":true,"flight":17}`:               ``,
		`{"ok":true,"flight":16}`:               `flight: is 16, but the batch has 17`,
		`{"ok":true,"flight":"17"}`:             `flight: must be the number`,
		`{"failed":{"c":"x"}}`:                  `handler named "c" as failed, which is not in the batch`,
		``:                                      `line 1, column 1: unexpected end of JSON, want an answer`,
		`hello`:                                 `unexpected character 'h', want an answer such as {"ok":true}`,
		`{}`:                                    `neither "ok" nor "failed" nor "bury"`,
		`{"error":"x"}`:                         `neither "ok" nor "failed" nor "bury"`,
		`{"ok":true,"error":"x"}`:               `error: given although "ok" is true`,
		`{"ok":true,"failed":{"a":"x"}}`:        `both "ok" and "failed" or "bury"`,
		`{"ok":1}`:                              `line 1, column 7: ok: must be true or false`,
		`{"ok":false,"error":1}`:                `error: must be a string`,
		`{"failed":["a"]}`:                      `failed: must be an object`,
		`{"failed":{"a":null}}`:                 `failed: must be a string`,
		`{"failed":{"\ud800":"x"}}`:             `failed: half of a surrogate pair`,
		`{"failed_base64":{"!":"x"}}`:           `failed_base64: must be standard base64`,
		`{"status":"ok"}`:                       `unknown field "status" in an answer`,
		`{"ok":true}{"ok":true}`:                `column 12: unexpected character '{', want the end after the answer`,
		`{"ok":true`:                            `want ',' or '}'`,
		`{"failed":{"a":"x"},"fail":true`:       `unknown field "fail"`,
	} {
		err := ParseAnswer([]byte(text), b)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// The kinds matter to callers: a refusal keeps the connection or child, nonsense
// does not.
func TestParseAnswerKinds(t *testing.T) {
	t.Parallel()
	var failed lowkiq.Failed
	if err := ParseAnswer([]byte(`{"failed":{"a":"x"}}`), one("1")); !errors.As(err, &failed) || failed["a"].Error() != "x" {
		t.Errorf("got %v, want lowkiq.Failed with a", err)
	}
	var bury lowkiq.Bury
	err := ParseAnswer([]byte(`{"failed":{"a":"x"},"bury_base64":{"/w==":"bad"}}`), &lowkiq.Batch{Jobs: []lowkiq.Job{{ID: "a"}, {ID: "\xff"}}})
	if !errors.As(err, &failed) || len(failed) != 2 || !errors.As(failed["\xff"], &bury) || bury.Reason != "bad" || errors.As(failed["a"], &bury) {
		t.Errorf("got %#v, want a to fail and the other to be buried", err)
	}
	for text, want := range map[string]bool{`{"ok":false,"error":"x"}`: false, `{"failed":{"c":"x"}}`: false, `x`: true, `{}`: true} {
		var bad *Error
		if got := errors.As(ParseAnswer([]byte(text), one("1")), &bad); got != want {
			t.Errorf("%s: got *Error %t, want %t", text, got, want)
		}
	}
}

// FuzzParseAnswer checks that text that is not JSON is no answer. Everything in an answer is about finished jobs of the
// batch, and within the limits.
func FuzzParseAnswer(f *testing.F) {
	for _, seed := range []string{`{"ok":true}`, `{"ok":false,"error":"x"}`, `{"failed":{"a":"x"}}`, `{"failed_base64":{"YQ==":"x"}}`, `[`, `{"ok":`,
		`{"ok":true,"answers":{"a":{"result":{"$base64":"/w=="},"state":null}}}`, `{"failed":{"a":"x"},"answers":{"b":{"state": [1, 2]},"a":{"result":""}}}`,
		`{"ok":true,"answers":{"c":{}}}`, `{"ok":true,"answers":{"a":{"then":[]}}}`, `{"bury":{"b":""},"answers_base64":{"YQ==":{"result":null}}}`, `{"ok":true,"answers":{"a":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		batch := one("1")
		batch.Jobs = append(batch.Jobs, lowkiq.Job{ID: "b"})
		err := ParseAnswer(text, batch)
		var bad *Error
		if !errors.As(err, &bad) && !json.Valid(text) {
			t.Fatalf("%q: got %v for what is no JSON", text, err)
		}
		var failed lowkiq.Failed
		said := batch.Answers()
		if err != nil && !errors.As(err, &failed) && len(said) > 0 {
			t.Fatalf("%q: got %v, and %s all the same", text, err, told(said))
		}
		for id, one := range said {
			if id != "a" && id != "b" || failed[id] != nil || len(one.Result) > lowkiq.MaxResultBytes || len(one.State) > lowkiq.MaxStateBytes {
				t.Fatalf("%q: got %v, and %s", text, err, told(said))
			}
		}
	})
}

func BenchmarkAppendBatch(b *testing.B) {
	batch := one(`{"commit":"0123456789abcdef","added":12,"removed":3,"author":"someone"}`)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendBatch(buf[:0], batch)
	}
}

func BenchmarkParseAnswer(b *testing.B) {
	batch := one("1")
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseAnswer([]byte(`{"ok": true}`), batch); err != nil {
			b.Fatal(err)
		}
	}
}

func TestParseBatch(t *testing.T) {
	t.Parallel()
	want := one(`{"b":1}`)
	want.Jobs = append(want.Jobs, lowkiq.Job{ID: "\xff", RetryCount: 2, Payloads: []lowkiq.Payload{
		{Score: 0.5}, {Score: 1763600000.123456, Data: []byte("no JSON"), Header: `{"tag":"vip"}`}, {Score: 2, Data: []byte(`{"$base64":"eA=="}`)}}})
	got, err := ParseBatch(AppendBatch(nil, want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "nonsense", "{}", `{"queue":"a","jobs":[]}`, `{"jobs":[{"id":"a"}]}`,
		`{"queue":"a","jobs":[{"id":"a","payloads":[{"score":1,"payload":{"$base64":"?"}}]}]}`, `{"queue":"a","jobs":[{"id":"a","payloads":[{"score":1}]}]}`,
		`{"queue":"a","jobs":[{"id":"a","payloads":[{"score":1,"payload":1,"header":{"a b":"1"}}]}]}`} {
		if got, err := ParseBatch([]byte(text)); err == nil {
			t.Errorf("%s: got %+v, want an error", text, got)
		}
	}
}

func TestMain(m *testing.M) { leaktest.Main(m) }

// one is a batch of one job with one payload.
func one(payload string) *lowkiq.Batch {
	return &lowkiq.Batch{
		Shard: lowkiq.Shard{Queue: "history", Index: 3}, Fence: 1763600000123, Flight: 17,
		Jobs: []lowkiq.Job{{ID: "a", RetryCount: -1, Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(payload)}}}},
	}
}

// TestGolden reads what every release has sent to handlers, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Fence: 1763600000000, Flight: 17, Jobs: []lowkiq.Job{
		{ID: "a", RetryCount: -1, PerformAt: time.UnixMicro(1763600000000001), Payloads: []lowkiq.Payload{{Score: 1.5, Data: []byte(`{"n":1}`)}, {Score: 2, Data: []byte("\xff\x00")}}},
		{ID: "\xff", RetryCount: 2, PerformAt: time.UnixMicro(1763600000000002), Error: "boom", Payloads: []lowkiq.Payload{{Score: 1e18, Data: []byte("text")}}},
	}}
	golden.Check(t, "batch", string(AppendBatch(nil, batch)), func(t *testing.T, stored string) {
		got, err := ParseBatch([]byte(stored))
		if err != nil {
			t.Fatal(err)
		}
		if again := string(AppendBatch(nil, got)); again != stored {
			t.Errorf("read and written again: %s, want %s", again, stored)
		}
	})
	batch.Jobs[0].Payloads[0].Header = `{"tag":"vip"}`
	golden.Check(t, "batch-header", string(AppendBatch(nil, batch)), func(t *testing.T, stored string) {
		got, err := ParseBatch([]byte(stored))
		if err != nil || got.Jobs[0].Payloads[0].Header.Get("tag") != "vip" || string(AppendBatch(nil, got)) != stored {
			t.Errorf("got %+v %v of %s", got, err, stored)
		}
	})
	batch.Jobs[0].Callers, batch.Jobs[0].State, batch.Jobs[1].State = 2, []byte(`{"n":41}`), []byte("null")
	golden.Check(t, "batch-state", string(AppendBatch(nil, batch)), func(t *testing.T, stored string) {
		got, err := ParseBatch([]byte(stored))
		if err != nil || got.Jobs[0].Callers != 2 || string(got.Jobs[0].State) != `{"n":41}` || string(got.Jobs[1].State) != "null" || string(AppendBatch(nil, got)) != stored {
			t.Errorf("got %+v %v of %s", got, err, stored)
		}
	})
	const answers = `{"failed_base64":{"/w==":"boom"},"answers":{"a":{"result":{"price":3},"state":{"$base64":"AP8="}}}}`
	golden.Check(t, "answer-answers", answers, func(t *testing.T, stored string) {
		said := lowkiq.Batch{Jobs: batch.Jobs}
		err := ParseAnswer([]byte(stored), &said)
		if got := said.Answers()["a"]; err == nil || err.Error() != "\xff: boom" || string(got.Result) != `{"price":3}` || string(got.State) != "\x00\xff" {
			t.Errorf("got %v and %s of %s", err, told(said.Answers()), stored)
		}
	})
	const failed = `{"failed":{"a":"no stock"},"failed_base64":{"/w==":"boom"}}`
	golden.Check(t, "answer", failed, func(t *testing.T, stored string) {
		var got lowkiq.Failed
		if err := ParseAnswer([]byte(stored), batch); !errors.As(err, &got) || len(got) != 2 || got["a"] == nil || got["a"].Error() != "no stock" {
			t.Errorf("got %v", err)
		}
	})
	golden.Check(t, "answer-ok", `{"ok":true,"flight":17}`, func(t *testing.T, stored string) {
		if err := ParseAnswer([]byte(stored), batch); err != nil && !reflect.DeepEqual(err, nil) {
			t.Errorf("got %v, want none", err)
		}
	})
}
