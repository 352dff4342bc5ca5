package dashboard

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestLag(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 0: "0 s", time.Millisecond: "< 10 ms", 45 * time.Millisecond: "45 ms", 1500 * time.Millisecond: "1.5 s",
		59900 * time.Millisecond: "59 s", 250 * time.Second: "4 m 10 s", 185 * time.Minute: "3 h 5 m", 52 * time.Hour: "2 d 4 h",
	} {
		if got := formatLag(d); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 1000000: "1,000,000"} {
		if got := formatCount(n); got != want {
			t.Errorf("count: got %q, want %q", got, want)
		}
	}
	for n, want := range map[int]string{5: "5 B", 2048: "2.0 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.00 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("bytes: got %q, want %q", got, want)
		}
	}
	for s, want := range map[float64]string{.0001: "0.10 ms", .0625: "62.5 ms", .25: "250 ms", 2.345: "2.3 s", 90: "1 m 30 s"} {
		if got := formatTook(s); got != want {
			t.Errorf("took: got %q, want %q", got, want)
		}
	}
	for r, want := range map[float64]string{0: "0", .04: "0.0", 2.25: "2.2", 12345.6: "12,346"} {
		if got := perSecond(r); got != want {
			t.Errorf("perSecond: got %q, want %q", got, want)
		}
	}
}

func TestPayloadText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, data, form, text string
		cut                    bool
	}{
		{"empty", "", "empty", "", false},
		{"object", `{"a":[1,2]}`, "JSON", "{\n  \"a\": [\n    1,\n    2\n  ]\n}", false},
		{"number", "1e400", "JSON", "1e400", false},
		{"text", "hello\nworld", "text", "hello\nworld", false},
		{"bytes", "\x00\xff", "base64", "AP8=", false},
		{"terminal", "\x1b[31m", "base64", "G1szMW0=", false},
		{"long", strings.Repeat("ä", 6000), "text", strings.Repeat("ä", 4096), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := textOf([]byte(c.data)); got.Form != c.form || got.Text != c.text || got.Cut != c.cut || got.Size != len(c.data) {
				t.Errorf("got %.80v, want form %s, text %.40q, cut %t", got, c.form, c.text, c.cut)
			}
		})
	}
}

func TestBeginning(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"": "empty", "a\n  b": "a b", "abcdefghijkl": "abcdefghij…", "ääääää": "äääää…", "\x00\x01": "base64 AAE…",
	} {
		if got := summarizePayload([]byte(data), 10); got != want {
			t.Errorf("%q: got %q, want %q", data, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "a/b", "\xff\x00\r\n", "ü"} {
		if got, err := idOf(keyOf(id)); err != nil || got != id {
			t.Errorf("got %q, %v, want %q", got, err, id)
		}
	}
	for _, key := range []string{"", "*", "YQ==", keyOf(strings.Repeat("x", 513))} {
		if id, err := idOf(key); err == nil {
			t.Errorf("%q: got %q, want an error", key, id)
		}
	}
	for id, want := range map[string]string{"a": "a", " a": `" a"`, "\xff": `"\xff"`, "a\nb": `"a\nb"`} {
		if got := showID(id); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	for i, want := range map[int]string{0: "A", 25: "Z", 26: "AA", 27: "AB", 701: "ZZ", 702: "AAA"} {
		if got := markOf(i); got != want {
			t.Errorf("%d: got %q, want %q", i, got, want)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	now := time.Unix(1763600000, 0)
	samples := []sample{
		{At: now.Add(-chartSpan - time.Minute), rate: rate{9000, 0}}, {At: now.Add(-chartSpan), rate: rate{0, 0}},
		{At: now.Add(-chartSpan / 2), rate: rate{30, 1}}, {At: now, rate: rate{15, 50}},
	}
	c := chartOf(samples, now)
	if want := "M0.0 100.0L500.0 40.0L1000.0 70.0"; c.Processed != want || c.Top != 50 {
		t.Errorf("got %q up to %g, want %q up to 50", c.Processed, c.Top, want)
	}
	if want := "M0.0 100L0.0 100.0L500.0 40.0L1000.0 70.0L1000.0 100Z"; c.Area != want {
		t.Errorf("got area %q, want %q", c.Area, want)
	}
	if c := chartOf(nil, now); c.Processed != "" {
		t.Errorf("got %q from nothing, want nothing", c.Processed)
	}
	for v, want := range map[float64]float64{1: 1, 1.1: 2, 3: 5, 7: 10, 10: 10, 404: 500, .3: .5} {
		if got := roundUp(v); got != want {
			t.Errorf("roundUp(%g): got %g, want %g", v, got, want)
		}
	}
}

func TestPager(t *testing.T) {
	t.Parallel()
	w := &snapshot{}
	for i := range 120 {
		w.Queues = append(w.Queues, &figures{Name: "q" + string(rune('a'+i/26)) + string(rune('a'+i%26))})
	}
	for asked, want := range map[string][3]int{"": {1, 0, 50}, "2": {2, 50, 100}, "3": {3, 100, 120}, "9": {3, 100, 120}, "-1": {1, 0, 50}, "x": {1, 0, 50}} {
		p := pagerOf(mustURL("/?q=a&page="+asked), asked, len(w.Queues), 50)
		if got := [3]int{p.Page, p.From, p.To}; got != want {
			t.Errorf("%q: got %v, want %v", asked, got, want)
		}
	}
	if got := pagerOf(mustURL("/?q=a&page=2"), "2", 120, 50).Next; got != "/?page=3&q=a" {
		t.Errorf("got %q, want the filter kept", got)
	}
	if w.queue("qab") == nil || w.queue("zz") != nil {
		t.Error("got the wrong queue by its name")
	}
}

// JSON is indented as encoding/json does it, as far as it is shown, however much that would be of the whole.
func TestIndented(t *testing.T) { // alone: it counts allocations
	for _, text := range []string{`{"a":[1,2,{"b":"c\\\",{}[]"}],"e":{},"l":[]}`, "[ 1 , [ ] , { \"a b\" :  null } ]", `"x"`, `-1.5e3`, "[[[[]]]]", "{\n}"} {
		var want bytes.Buffer
		if err := json.Indent(&want, []byte(text), "", "  "); err != nil {
			t.Fatal(err)
		}
		if got := string(indentJSON([]byte(text), 1000)); got != strings.TrimRight(want.String(), " \n") {
			t.Errorf("%s: got %q, want %q", text, got, want.String())
		}
	}
	const depth = 9000
	deep := strings.Repeat("[", depth) + strings.Repeat("1,", 400_000) + "1" + strings.Repeat("]", depth)
	took := testing.AllocsPerRun(1, func() {
		if got := textOf([]byte(deep)); got.Form != "JSON" || !got.Cut || len(got.Text) > shownPayloadBytes {
			t.Errorf("got %s of %d bytes, cut %v", got.Form, len(got.Text), got.Cut)
		}
	})
	if got := cap(indentJSON([]byte(deep), 1000)); got > 100<<10 || took > 100 {
		t.Errorf("got %d bytes of indented text and %v allocations, want few", got, took)
	}
}
