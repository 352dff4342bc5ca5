package envelope_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/golden"
)

// What is stored opens to what was wrapped, whatever the data begins with.
func TestOpenGivesWhatWasWrapped(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.SampledFrom([]string{"", "\x00", "\x00L", "\x00L\x00\x00\x00", "{"}).Draw(t, "begin")
		data := begin + string(rapid.SliceOf(rapid.Byte()).Draw(t, "data"))
		all := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,5}`), rapid.String(), 0, 3).Draw(t, "headers")
		header, err := lowkiq.NewHeader(all)
		if err != nil {
			t.Fatal(err)
		}
		want := envelope.Content{Header: header, Address: rapid.SampledFrom([]string{"", "ra 1 c", strings.Repeat("a", envelope.MaxAddress)}).Draw(t, "address"), Data: data}
		stored := string(envelope.Wrap(want.Header, want.Address, []byte(data)))
		if got, ok := envelope.Open(stored); !ok || got != want {
			t.Fatalf("got %q, %v of %q, want %q", got, ok, stored, want)
		}
		if header == "" && want.Address == "" && !strings.HasPrefix(data, "\x00L") && stored != data {
			t.Fatalf("got %q stored, want the data alone, %q", stored, data)
		}
	})
}

// What is cut short is no envelope.
func TestOpenOfOthers(t *testing.T) {
	t.Parallel()
	if got, ok := envelope.Open("\x00L\x00\x02{}\x03adrdata"); got != (envelope.Content{Header: "{}", Address: "adr", Data: "data"}) || !ok {
		t.Errorf("with an address: got %q, %v", got, ok)
	}
	for _, bad := range []string{"\x00L", "\x00L\x00\x00", "\x00L\x00\x05{}\x00", "\x00L\x00\x00\x05abc"} {
		if _, ok := envelope.Open(bad); ok {
			t.Errorf("%q: got an envelope, want none", bad)
		}
	}
}

// TestGolden reads what every release has stored, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	golden.Check(t, "envelope", string(envelope.Wrap(`{"tag":"vip"}`, "", []byte("data"))), func(t *testing.T, stored string) {
		if got, ok := envelope.Open(stored); got != (envelope.Content{Header: `{"tag":"vip"}`, Data: "data"}) || !ok {
			t.Errorf("got %q, %v", got, ok)
		}
	})
	address := envelope.Address("4Jw9vZ2xQ0aBcDeFgHiJkL", time.Minute, "lk:{c}:reply:1")
	golden.Check(t, "envelope_call", string(envelope.Wrap("", address, []byte("data"))), func(t *testing.T, stored string) {
		if got, ok := envelope.Open(stored); got != (envelope.Content{Address: "r4Jw9vZ2xQ0aBcDeFgHiJkL 60000 lk:{c}:reply:1", Data: "data"}) || !ok {
			t.Errorf("got %q, %v", got, ok)
		}
	})
}
