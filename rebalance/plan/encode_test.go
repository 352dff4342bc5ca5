package plan

import (
	"encoding/binary"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAssignmentRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, queues := drawCluster(t, false)
		want := Compute(drawAssignment(t, queues), nodes, queues).Next
		want.Generation = Generation{rapid.Uint64().Draw(t, "record"), rapid.Uint64().Draw(t, "index")}
		if got, err := Decode(want.Append(nil)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

func TestAssignmentIsCompact(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(1000, 10, 10_000)
	data := Compute(empty, nodes, queues).Next.Append(nil)
	if limit := 210_000; len(data) > limit {
		t.Errorf("100,000 shards on 1,000 nodes: got %d bytes, want at most %d", len(data), limit)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, data, want string }{
		{"nothing", "", "version"},
		{"other version", "\x02\x00\x00\x00\x00", "version"},
		{"cut", "\x01\x00\x00", "too early"},
		{"too long", "\x01\x00\x00\x00\x00!", "too many"},
		{"huge count", "\x01\x00\x00\xff\xff\xff\xff\x0f", "too early"},
		{"unknown owner", "\x01\x00\x00\x01\x01a\x01\x01q\x01\x02", "owner 2 of 1"},
		{"node order", "\x01\x00\x00\x02\x01b\x01a\x00", "ascending"},
		{"queue order", "\x01\x00\x00\x00\x02\x01b\x00\x01a\x00", "ascending"},
	}
	for _, tt := range tests {
		if _, err := Decode([]byte(tt.data)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// TestRefusalsCostLittle checks that a damaged list costs little memory before it is refused. No other test runs meanwhile.
func TestRefusalsCostLittle(t *testing.T) {
	const size = 8 << 20
	rest, count := strings.Repeat("\x00", size), string(binary.AppendUvarint(nil, size))
	const tooLong = "\xff\xff\xff\xff\x0f" // the length of a string
	decode := func(data []byte) error { _, err := Decode(data); return err }
	apply := func(data []byte) error { _, err := new(Assignment).ApplyDelta(data); return err }
	for _, tt := range []struct {
		name, data string
		read       func([]byte) error
		want       string
	}{
		{"shards", "\x01\x00\x00\x00\x01\x01q" + count + rest, decode, "the limit is 10000"},
		{"queues", "\x01\x00\x00\x00" + count + "\x01q" + tooLong + rest + rest, decode, "too early"},
		{"nodes", "\x01\x00\x00" + count + tooLong + rest, decode, "too early"},
		{"names that are gone", "\x00" + count + rest, apply, "0 of 0 names"},
		{"new nodes", "\x00\x00" + count + tooLong + rest, apply, "too early"},
	} {
		data := []byte(tt.data)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := tt.read(data)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: the refusal of %d bytes took %d bytes, want at most 1 MiB", tt.name, len(data), took)
		}
	}
}

func FuzzAssignment(f *testing.F) {
	nodes, queues := cluster(3, 2, 4)
	f.Add(Compute(empty, nodes, queues).Next.Append(nil))
	f.Add([]byte("\x01\x00\x00\x01\x01a\x01\x01q\x01\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Decode(data)
		if err != nil {
			return
		}
		if b, err := Decode(a.Append(nil)); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("own encoding: got %+v, %v; want %+v", b, err, a)
		}
	})
}

func TestGenerationOrder(t *testing.T) {
	t.Parallel()
	ascending := []Generation{{}, {0, 9}, {1, 1}, {1, 2}, {2, 0}}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := a.Compare(b), min(1, max(-1, i-j)); got != want {
				t.Errorf("%s against %s: got %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, queues := drawCluster(t, false)
		current := drawAssignment(t, queues)
		for i, q := range queues { // of the right size: Plan lists no moves of shards that are gone
			current.Queues[i].Owners = current.Queues[i].Owners[:min(q.Shards, len(current.Queues[i].Owners))]
		}
		got := Compute(current, nodes, queues)
		changes := current.Diff(got.Next)
		if len(changes) != len(got.Moves) {
			t.Fatalf("got %d changes, want %d", len(changes), len(got.Moves))
		}
		for i, c := range changes {
			if c != got.Moves[i].Change {
				t.Fatalf("got %v, want %v", c, got.Moves[i].Change)
			}
		}
	})
}
