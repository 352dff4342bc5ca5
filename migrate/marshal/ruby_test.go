package marshal_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/migrate/marshal"
)

// ruby runs testdata/cross.rb, and returns its lines.
func ruby(t *testing.T, in []byte, args ...string) []string {
	t.Helper()
	path, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so the decoder was NOT compared with Ruby's own; install ruby to do it")
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{"-W0", "testdata/cross.rb"}, args...)...)
	cmd.Stdin = bytes.NewReader(in)
	var messages strings.Builder
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ruby %s: %v\n%s", args, err, messages.String())
	}
	return slices.Collect(strings.Lines(string(out)))
}

// crossed is what cross.rb says of a random value.
type crossed struct {
	Data   []byte `json:"marshal_b64"`
	Text   string
	WhyNot *string `json:"why_not"`
	Lossy  []string
}

// Random values that Ruby dumps are what Ruby says, and where bytes of dumps are changed, what is still
// plain data here is so for Ruby, and the same.
func TestRuby(t *testing.T) {
	t.Parallel()
	count := 4000
	if testing.Short() {
		count = 500
	}
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	var dumps [][]byte
	for _, line := range ruby(t, nil, "generate", fmt.Sprint(seed), fmt.Sprint(count)) {
		var c crossed
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		agrees(t, fmt.Sprintf("%q", c.Data), c.Data, json.RawMessage(c.Text), c.Lossy, c.WhyNot)
		dumps = append(dumps, c.Data)
	}
	if len(dumps) < count/2 {
		t.Errorf("got %d dumps only", len(dumps))
	}
	for _, s := range samples(t) {
		if len(s.Data) < 1000 {
			dumps = append(dumps, s.Data)
		}
	}
	asRubyReads(t, changed(rand.New(rand.NewPCG(uint64(seed), 1)), dumps, count))
}

// asRubyReads checks what dumps say here against what Ruby reads in them.
func asRubyReads(t *testing.T, dumps [][]byte) {
	t.Helper()
	var in []byte
	for _, data := range dumps {
		in = append(base64.StdEncoding.AppendEncode(in, data), '\n')
	}
	lines := ruby(t, in, "load")
	if len(lines) != len(dumps) {
		t.Fatalf("got %d lines of %d dumps", len(lines), len(dumps))
	}
	for i, data := range dumps {
		if text, _, err := marshal.JSON(data, math.MaxInt); err != nil || string(text)+"\n" != lines[i] {
			t.Errorf("%q (base64 %s):\n got %s, %v,\nruby %s", data, base64.StdEncoding.EncodeToString(data), text, err, lines[i])
		}
	}
}

// changed are dumps with some bytes changed that are plain data still.
func changed(rnd *rand.Rand, dumps [][]byte, count int) [][]byte {
	var all [][]byte
	for tries := 0; len(all) < count && tries < 200*count; tries++ {
		data := change(rnd, dumps)
		if _, _, err := marshal.JSON(data, math.MaxInt); err == nil {
			all = append(all, data)
		}
	}
	return all
}

// change returns one of the dumps with some bytes changed.
func change(rnd *rand.Rand, dumps [][]byte) []byte {
	const types = "0TFil\"I:;[{}@fEK\x00\x05\x06\x07\x08\xfa\xff\x01\x02\x80e+-"
	data := slices.Clone(dumps[rnd.IntN(len(dumps))])
	for range 1 + rnd.IntN(3) {
		at := min(2+rnd.IntN(max(1, len(data)-2)), len(data))
		kind := rnd.IntN(6)
		switch {
		case kind == 0: // a byte more
			data = slices.Insert(data, at, types[rnd.IntN(len(types))])
		case kind == 1: // bytes less
			data = slices.Delete(data, at, min(len(data), at+1+rnd.IntN(3)))
		case kind == 2: // a part of another dump
			from := dumps[rnd.IntN(len(dumps))]
			start := min(2+rnd.IntN(len(from)), len(from))
			data = slices.Replace(data, at, min(len(data), at+rnd.IntN(8)), from[start:min(len(from), start+rnd.IntN(12))]...)
		case at == len(data):
		case kind == 3: // another byte
			data[at] = byte(rnd.Uint32())
		case kind == 4: // another type, or length
			data[at] = types[rnd.IntN(len(types))]
		case kind == 5: // one more, or one less
			data[at] += byte(1 - 2*rnd.IntN(2))
		}
	}
	return data
}
