package marshal_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/migrate/marshal"
)

// texts are JSON: what the samples say, and random values.
func texts(t *testing.T, rnd *rand.Rand, count int) (all [][]byte) {
	for _, s := range samples(t) {
		if text, _, err := marshal.JSON(s.Data, math.MaxInt); err == nil && len(text) < 10_000 {
			all = append(all, text)
		}
	}
	for range count {
		all = append(all, []byte(randomText(rnd, 4)))
	}
	return all
}

func randomText(rnd *rand.Rand, depth int) string {
	some := func(one func() string) string {
		parts := make([]string, rnd.IntN(5))
		for i := range parts {
			parts[i] = one()
		}
		return strings.Join(parts, ",")
	}
	word := func() string { return fmt.Sprintf("%q", strings.Repeat("aé☃"[:1+rnd.IntN(2)*2], rnd.IntN(3))) }
	switch kind := rnd.IntN(9); {
	case depth > 0 && kind < 2:
		return "[" + some(func() string { return randomText(rnd, depth-1) }) + "]"
	case depth > 0 && kind < 5:
		return "{" + some(func() string { return word() + ": " + randomText(rnd, depth-1) }) + "}"
	case kind == 5:
		return word()
	case kind == 6:
		x := math.Float64frombits(rnd.Uint64())
		if rnd.IntN(2) == 0 || x-x != 0 {
			x = float64(rnd.IntN(5)) / 4 * math.Pow10(rnd.IntN(40)-20)
		}
		if text := fmt.Sprintf("%g", x); strings.ContainsAny(text, ".e") {
			return text
		}
		return fmt.Sprintf("%g.0", x)
	case kind == 7:
		return fmt.Sprint(rnd.Int64() >> rnd.IntN(64) * int64(1-2*rnd.IntN(2)))
	case kind == 8:
		return fmt.Sprintf("%d%d", 1+rnd.IntN(9), rnd.Uint64())
	}
	return []string{"null", "true", "false"}[rnd.IntN(3)]
}

// What is dumped says what the text did.
func TestDumpSaysTheSame(t *testing.T) {
	t.Parallel()
	for _, s := range samples(t) {
		want, _, err := marshal.JSON(s.Data, math.MaxInt)
		if err != nil {
			continue
		}
		data, err := marshal.Dump(want)
		if err != nil {
			t.Errorf("%.200s: %v", want, err)
			continue
		}
		if got, _, err := marshal.JSON(data, math.MaxInt); err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %.200s, %v, want %.200s", got, err, want)
		}
	}
}

// Ruby dumps what it reads in a text as [marshal.Dump] does, byte for byte.
func TestDumpIsRubys(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	all := texts(t, rand.New(rand.NewPCG(seed, 1)), 2000)
	var in []byte
	for _, text := range all {
		in = append(base64.StdEncoding.AppendEncode(in, text), '\n')
	}
	lines := ruby(t, in, "dump")
	if len(lines) != len(all) {
		t.Fatalf("got %d lines of %d texts", len(lines), len(all))
	}
	for i, text := range all {
		want, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[i]))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := marshal.Dump(text); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%.300s:\n got %.300q, %v,\nruby %.300q", text, got, err, want)
		}
	}
}

func TestDumpRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":              "no JSON",
		"{":             "no JSON",
		"1 2":           "no JSON",
		"\"\xff\"":      "not UTF-8",
		`"\ud800"`:      "surrogate",
		`{"\ud800x":1}`: "surrogate",
		"1e999":         "none of Ruby's floats",
		strings.Repeat("[", 102) + strings.Repeat("]", 102): "nested deeper",
		strings.Repeat("9", 5000):                           "an integer of 5000 digits",
	} {
		if data, err := marshal.Dump([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: got %q, %v, want it refused: %s", text, data, err, want)
		}
	}
	if _, err := marshal.Dump([]byte(`["\ufffd", "` + "\uFFFD" + `"]`)); err != nil {
		t.Errorf("the character U+FFFD itself: %v", err)
	}
}
