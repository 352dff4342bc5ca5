package marshal_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/migrate/marshal"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Values as Marshal.dump of Ruby 3.1 wrote them, with what Ruby's JSON.generate says of them.
//
//go:embed testdata/samples.jsonl.gz
var packed []byte

type sample struct {
	Data   []byte          `json:"marshal_b64"`
	JSON   json.RawMessage // null where WhyNot is set
	Lossy  []string
	WhyNot *string `json:"why_not"`
	Ruby   string  // source of the value
}

func samples(t testing.TB) []sample {
	all := rubystates.ReadLines[sample](t, packed)
	if len(all) != 238 {
		t.Fatalf("got %d samples, want 238", len(all))
	}
	return all
}

// short is the end of a reason of Ruby's that says less than ours.
const short = "…"

// agrees checks what is said of a dump against what Ruby says.
func agrees(t *testing.T, what string, data []byte, text json.RawMessage, lossy []string, whyNot *string) {
	t.Helper()
	got, loss, err := marshal.JSON(data, math.MaxInt)
	if whyNot != nil {
		why, _, _ := strings.Cut(*whyNot, short)
		if refused := (*marshal.Error)(nil); !errors.As(err, &refused) || refused.Why != *whyNot &&
			(why == *whyNot || !strings.HasPrefix(refused.Why, why)) {
			t.Errorf("%s: got %s, %v, want it refused: %s", what, got, err, *whyNot)
		}
		return
	}
	names := loss.Names()
	slices.Sort(names)
	lossy = slices.Sorted(slices.Values(lossy))
	if text == nil {
		text = json.RawMessage("null")
	}
	if err != nil || string(got) != string(text) || !slices.Equal(names, lossy) {
		t.Errorf("%s: got %.200s, %v, %v, want %.200s, %v", what, got, names, err, text, lossy)
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	for _, s := range samples(t) {
		agrees(t, s.Ruby, s.Data, s.JSON, s.Lossy, s.WhyNot)
	}
}

// Payloads that Ruby's Lowkiq stored.
func TestPayloadsOfStates(t *testing.T) {
	t.Parallel()
	count := 0
	for _, state := range rubystates.LoadAll(t) {
		if state.Codec != "marshal" {
			continue
		}
		views := []rubystates.Expect{state.Expect}
		if state.ExpectCompleted != nil {
			views = append(views, *state.ExpectCompleted)
		}
		for _, view := range views {
			for _, job := range slices.Concat(view.Jobs, view.Morgue) {
				for _, p := range job.Payloads {
					agrees(t, state.Name, p.Bytes, p.JSON, p.Lossy, p.WhyNot)
					count++
				}
			}
		}
	}
	if count < 28_000 {
		t.Errorf("looked at %d payloads only", count)
	}
}

// The two tests above find an answer that is wrong.
func TestAgreesObjects(t *testing.T) {
	t.Parallel()
	why := "an object of Time"
	for _, wrong := range []sample{
		{Data: []byte("\x04\bi\x06"), JSON: json.RawMessage("2")},
		{Data: []byte("\x04\b:\x06a"), JSON: json.RawMessage(`"a"`)},
		{Data: []byte("\x04\bi\x06"), WhyNot: &why},
		{Data: []byte("\x04\bo:\x09Date"), JSON: json.RawMessage("null")},
		{Data: []byte("\x04\bo:\x09Date\x00"), WhyNot: &why},
	} {
		trial := &testing.T{}
		agrees(trial, "", wrong.Data, wrong.JSON, wrong.Lossy, wrong.WhyNot)
		if !trial.Failed() {
			t.Errorf("%q passes as %s, %v", wrong.Data, wrong.JSON, wrong.WhyNot)
		}
	}
}

// What is refused is named, with its place and its byte.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		// not plain
		"[\x09i\x06i\x06i\x06{\x06I\"\x09when\x06:\x06ETIu:\x09Time\x0d": `an object of Time, at [3]."when" (byte 24)`,
		"o:\x08A\nB\x00":                     `an object of "A\nB" (byte 2)`,
		"{\x06o:\x08Set\x00i\x06":            "a hash's key of Set (byte 4)",
		"[\x06{\x06[\x00i\x06":               "a hash's key of Array, at [0] (byte 6)",
		"{\x06I[\x00i\x06":                   "a hash's key of Array (byte 4)",
		"[\x07[\x00{\x06@\x06i\x06":          "a hash's key of Array, at [1] (byte 8)",
		"[\x07f\x061{\x06@\x06i\x06":         "a hash's key of Float, at [1] (byte 9)",
		"{\x06e:\x08Ext\"\x06ai\x06":         "extended by Ext (byte 4)",
		"{\x06e:\x08Ext[\x00i\x06":           "a hash's key of Array (byte 4)",
		"e:\x06Ae:\x06Bo:\x06C\x00":          "an object of C (byte 2)",
		"I[\x00\x06:\x07@xi\x06":             "instance variables of an Array (byte 2)",
		"I{\x00\x06:\x07@xi\x06":             "instance variables of a Hash (byte 2)",
		"I:\x06a\x06:\x07@xi\x06":            "instance variables of a Symbol (byte 2)",
		"}\x00[\x06c\x0bString":              "the default of a hash: a class, at [0] (byte 6)",
		"}\x00@\x00":                         "the default of a hash: it holds itself (byte 4)",
		"I\"\x00\x06:\rencoding\"\x0bUTF-16": "a string in UTF-16 (byte 2)",
		"\"\x06\xff":                         "a string in ASCII-8BIT (byte 2)",
		"I\"\x06\x80\x06:\x06EF":             "a string in US-ASCII (byte 2)",
		"I:\x06\x80\x06:\x06ET":              "a string that is not valid UTF-8 (byte 2)",
		"f\x0a1e999":                         "the float Infinity (byte 2)",
		"f\x0b-1e999":                        "the float -Infinity (byte 2)",
		// made up, or cut short
		"":                            "data that ends in the middle of a value (byte 2)",
		"00":                          "1 bytes after the end of the value (byte 3)",
		"[\x06":                       "an array with the length 1 in data that ends after 0 bytes more (byte 3)",
		"[\xf9":                       "an array with the length -2 (byte 3)",
		"[\x04\x00\x00\x00\x40":       "an array with the length 1073741824 in data that ends after 0 bytes more (byte 3)",
		"{\x04\xff\xff\xff\x7f00":     "a hash with the length 2147483647 in data that ends after 2 bytes more (byte 3)",
		"{\x0700":                     "a hash with the length 2 in data that ends after 2 bytes more (byte 3)",
		"\"\x0aabc":                   "a string with the length 5 in data that ends after 3 bytes more (byte 3)",
		"l+\x04\xff\xff\xff\x7f":      "an integer with the length 2147483647 in data that ends after 0 bytes more (byte 4)",
		"l*\x06\x00\x00":              `an integer with the sign '*' (byte 2)`,
		"i\x04\x01":                   "data that ends in the middle of an integer (byte 5)",
		"@\x06":                       "a link to object 1 of 0 so far (byte 2)",
		"[\x07\"\x00@\xfa":            "a link to object -1 of 2 so far, at [1] (byte 6)",
		"[\x06@\x00":                  "it holds itself, at [0] (byte 4)",
		";\x00":                       "a link to symbol 0 of 0 so far (byte 2)",
		"f\x080x1":                    `a float that is none, "0x1" (byte 2)`,
		"f\x061\x00":                  "1 bytes after the end of the value (byte 5)",
		"{\x06I00":                    `variables of a value of the type '0' (byte 4)`,
		"II\"\x00\x00\x00":            `variables of a value of the type 'I' (byte 2)`,
		"I;\x00\x00":                  `variables of a value of the type ';' (byte 2)`,
		"I\"\x00\x06i\x06T":           `the name of a variable that is no symbol, but of the type 'i' (byte 6)`,
		"I\"\x00\x06:\x06E0":          "an unknown encoding (byte 9)",
		"I\"\x00\x06:\rencoding@\x00": "it holds itself (byte 16)",
		"\xff":                        `a value of the type 'ÿ', which Marshal 4.8 does not have here (byte 2)`,
	} {
		text, _, err := marshal.JSON([]byte("\x04\b"+data), math.MaxInt)
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %s, %v, want %s", data, text, err, want)
		}
	}
	for _, data := range []string{"", "\x04", "\x04\x09i\x06", `{"a":1}`, "\x03\x08i\x06"} {
		if _, _, err := marshal.JSON([]byte(data), math.MaxInt); err == nil ||
			!strings.HasPrefix(err.Error(), "data that does not begin as Marshal 4.8 does") {
			t.Errorf("%q: got %v, want it refused", data, err)
		}
	}
}

// What Ruby's own samples do not have.
func TestValues(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"I{\x06i\x06i\x07\x06:\x06KT": `{"1":2} key`,
		"I\"\x06a\x00":                `"a" encoding`,
		"I[\x00\x00":                  `[] `,
		"l-\x06\x00\x00":              "0 ",
		"l+\x06\x05\x00":              "5 ",
		"[\x08l+\x00\"\x00@\x07":      `[0,"",""] encoding`,
		"{\x07l+\x07\x00\x00\x00\x40i\x06I\"\x00\x06:\x06ET@\x06": `{"1073741824":1,"":1073741824} key`,
		"[\x07}\x00\"\x06a@\x07":                                  `[{},"a"] encoding, default`,
		"[\x07}\x00[\x06i\x06@\x07":                               `[{},[1]] default`,
		"[\x07}\x00}\x00\"\x06a[\x06@\x08":                        `[{},["a"]] encoding, default`,
		"[\x07}\x00[\x07I\"\x06b\x06:\rencoding\"\x0fISO-8859-1}\x00[\x06i\x06[\x08@\x07@\x09@\x0a": `[{},[["b",{}],"ISO-8859-1",{}]] encoding, default`,
		"[\x07}\x00[\x06}\x00[\x06i\x06[\x07@\x08@\x09":                                             `[{},[{},[1]]] default`,
		"}\x000": `{} `,
		"[\x08}\x00I\"\x06b\x06:\rencoding\"\x0fISO-8859-1@\x08I\"\x06c\x06;\x00@\x08": `[{},"ISO-8859-1","c"] encoding, default`,
		"[\x07I\"\x06c\x06:\rencoding\"\x0bUTF-16@\x07":                                "",
		"f\x0b1e-330":             "0.0 ",
		"f\x0c-1e-330":            "-0.0 ",
		"f\x0b0.0001":             "0.0001 ",
		"f\x0a1e-05":              "1.0e-05 ",
		"f\x092e15":               "2.0e+15 ",
		"f\x172208324117971351.2": "2208324117971351.2 ",
		"f\x16123456789012345.6":  "123456789012345.6 ",
		"f\x151234567890123456":   "1.234567890123456e+15 ",
		"f\x1622083241179713512":  "2.208324117971351e+16 ",
		"f\x0a99e13":              "990000000000000.0 ",
		"f\x0a12e15":              "1.2e+16 ",
	} {
		text, loss, err := marshal.JSON([]byte("\x04\b"+data), math.MaxInt)
		if got := string(text) + " " + loss.String(); err != nil && want != "" || err == nil && got != want {
			t.Errorf("%q: got %s, %v, want %s", data, got, err, want)
		}
	}
}

// bomb is a dump whose text doubles with every few bytes.
func bomb(levels int) []byte {
	data := []byte("\x04\b[\x07[\x00")
	data[3] = byte(levels + 1 + 5)
	for i := range levels {
		data = append(data, '[', 7, '@', byte(i+1+5), '@', byte(i+1+5))
	}
	return data
}

// symbols is a dump that uses a long symbol again and again.
func symbols(n int) []byte {
	data := append([]byte("\x04\b[\x03\x00\x00\x01:\x02"), byte(n), byte(n>>8))
	data = append(data, strings.Repeat("s", n)...)
	return append(data, strings.Repeat(";\x00", 1<<16-1)...)
}

// hostile are dumps that say more than they have, or take as much as they can.
func hostile() map[string][]byte {
	many := func(s string) []byte { // an array of as many
		return append([]byte("\x04\b[\x03\x00\x00\x01"), strings.Repeat(s, 1<<16)...)
	}
	long := append([]byte("\x04\b[\x02\x00\x04"), strings.Repeat("l+\x02\x00\x02"+strings.Repeat("\xff", 1024), 1<<10)...)
	pairs := []byte("\x04\b{\x02\x00\x40")
	for i := range 1 << 14 {
		pairs = append(pairs, 'i', 2, byte(i), byte(i>>8), '0')
	}
	all := map[string][]byte{
		"array of 2^30":      []byte("\x04\b[\x04\x00\x00\x00\x40"),
		"nested, of 2^30":    []byte("\x04\b" + strings.Repeat("[\x04\x00\x00\x00\x40", 90)),
		"hash of 2^30":       []byte("\x04\b{\x04\x00\x00\x00\x40"),
		"string of 2^30":     []byte("\x04\b\"\x04\x00\x00\x00\x40"),
		"integer of 2^31":    []byte("\x04\bl+\x04\x00\x00\x00\x40"),
		"variables, 2^30":    []byte("\x04\bI\"\x00\x04\x00\x00\x00\x40"),
		"bomb":               bomb(90),
		"symbols":            symbols(60_000),
		"short symbols":      many(":\x00"),
		"empty strings":      many("\"\x00"),
		"empty arrays":       many("[\x00"),
		"floats":             many("f\x061"),
		"integers":           many("l+\x06\x01\x00"),
		"long integers":      long,
		"control characters": append([]byte("\x04\b\"\x03\x00\x00\x01"), strings.Repeat("\x01", 1<<16)...),
		"pairs":              pairs,
		"names in names":     []byte("\x04\bI:\x06a" + strings.Repeat("\x06I:\x06a", 100_000)),
		"modules":            []byte("\x04\b" + strings.Repeat("e:\x00", 100_000)),
		"deep":               []byte("\x04\b" + strings.Repeat("[\x06", 1_000_000)),
		"twice":              many("{\x070000"),
		"long class":         append([]byte("\x04\bo:\x03\x00\x00\x01"), strings.Repeat("A", 1<<16)...),
		"a long integer":     append([]byte("\x04\bl+\x03\x00\x00\x01"), strings.Repeat("\xff", 2<<16)...),
	}
	for _, n := range []int{1, 100, 1000, 20_000} {
		all[fmt.Sprint("symbols of ", n)] = symbols(n)
	}
	return all
}

// spent is how many bytes a call allocates.
func spent(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// All that is ever allocated for a dump is limited by its length, and so is its text. No t.Parallel:
// what others allocate would be counted.
func TestMemory(t *testing.T) {
	for name, data := range hostile() {
		var text []byte
		var err error
		got := spent(func() { text, _, err = marshal.JSON(data, math.MaxInt) })
		if most := uint64(6*marshal.MaxText(len(data)) + 200*len(data)); got > most {
			t.Errorf("%s: %d bytes of data took %d bytes of memory, want at most %d (%.100v)", name, len(data), got, most, err)
		}
		if len(text) > marshal.MaxText(len(data)) {
			t.Errorf("%s: %d bytes of data gave a text of %d", name, len(data), len(text))
		}
		if err != nil && len(err.Error()) > 2000 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
		t.Logf("%-20s %8d bytes of data, %9d of text, %10d of memory, %.150v", name, len(data), len(text), got, err)
	}
	if _, _, err := marshal.JSON(bomb(90), math.MaxInt); err == nil || !strings.Contains(err.Error(), "used again and again, at [") {
		t.Errorf("got %v, want the bomb refused", err)
	}
}

// A text that would be longer than asked for is not made: what was allocated until then has the size of the limit, however
// much the dump says.
func TestLimit(t *testing.T) {
	const most = 64 << 10
	data := append(append([]byte("\x04\b[\x02\xff\xff\""), longString(10_000)...), strings.Repeat("@\x06", 65_534)...)
	var err error
	got := spent(func() { _, _, err = marshal.JSON(data, most) })
	var refused *marshal.Error
	if !errors.As(err, &refused) || !refused.Long || !strings.Contains(err.Error(), "longer than 65536 bytes, which is the limit") {
		t.Errorf("got %v, want it refused by the limit", err)
	}
	if got > 8*most+uint64(len(data)) {
		t.Errorf("got %d bytes allocated for a limit of %d, want few more", got, most)
	}
	short := []byte("\x04\b[\x06i\x06")
	if text, _, err := marshal.JSON(short, 3); string(text) != "[1]" || err != nil {
		t.Errorf("a text as long as the limit: got %q, %v", text, err)
	}
	if _, _, err := marshal.JSON(short, 2); !errors.As(err, &refused) || !refused.Long {
		t.Errorf("a text one byte longer: got %v, want it refused", err)
	}
}

// longString is a string of n bytes as Ruby dumps it, without its type.
func longString(n int) []byte {
	return append([]byte{3, byte(n), byte(n >> 8), byte(n >> 16)}, strings.Repeat("x", n)...)
}

// FuzzJSON checks that all bytes are refused or give JSON of a limited length.
func FuzzJSON(f *testing.F) {
	for _, s := range samples(f) {
		if len(s.Data) < 2000 {
			f.Add(s.Data)
		}
	}
	for _, data := range hostile() {
		if len(data) < 2000 {
			f.Add(data)
		}
	}
	f.Fuzz(sound)
}

// sound checks what must hold for any bytes.
func sound(t *testing.T, data []byte) {
	text, loss, err := marshal.JSON(data, math.MaxInt)
	if err != nil {
		refused := (*marshal.Error)(nil)
		if !errors.As(err, &refused) || refused.Why == "" || refused.Offset < 0 || refused.Offset > len(data) || len(err.Error()) > 4000 ||
			text != nil || loss != 0 {
			t.Fatalf("got %s, %v, %#v of %q", text, loss, err, data)
		}
		return
	}
	if !json.Valid(text) {
		t.Fatalf("got %s of %q, want JSON", text, data)
	}
	if len(text) > marshal.MaxText(len(data)) {
		t.Fatalf("got a text of %d bytes of %q", len(text), data)
	}
}

// Dumps with some bytes changed: what the fuzzer does, but fast, and with an eye for the format.
func TestChangedBytes(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
	var dumps [][]byte
	for _, s := range samples(t) {
		if len(s.Data) < 1000 {
			dumps = append(dumps, s.Data)
		}
	}
	for range 100_000 {
		sound(t, change(rnd, dumps))
	}
}

func BenchmarkJSON(b *testing.B) {
	var order []byte
	var all [][]byte
	total := 0
	for _, s := range samples(b) {
		if s.WhyNot == nil && len(s.Data) < 10_000 {
			all = append(all, s.Data)
			total += len(s.Data)
		}
		if strings.HasPrefix(s.Ruby, `{"order_id"=>17`) {
			order = s.Data
		}
	}
	run := func(name string, bytes int, datas ...[]byte) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				for _, data := range datas {
					if _, _, err := marshal.JSON(data, math.MaxInt); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
	run("order", len(order), order)
	run("samples", total, all...)
}
