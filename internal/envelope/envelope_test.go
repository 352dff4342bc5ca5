package envelope_test

import (
	"strings"
	"testing"

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
		stored := string(envelope.Wrap(header, []byte(data)))
		gotHeader, gotData, ok := envelope.Open(stored)
		if !ok || gotHeader != header || gotData != data {
			t.Fatalf("got %q, %q, %v of %q, want %q, %q", gotHeader, gotData, ok, stored, header, data)
		}
		if header == "" && !strings.HasPrefix(data, "\x00L") && stored != data {
			t.Fatalf("got %q stored, want the data alone, %q", stored, data)
		}
	})
}

// An address is passed over; what is cut short is no envelope.
func TestOpenOfOthers(t *testing.T) {
	t.Parallel()
	header, data, ok := envelope.Open("\x00L\x00\x02{}\x03adrdata")
	if header != "{}" || data != "data" || !ok {
		t.Errorf("with an address: got %q, %q, %v", header, data, ok)
	}
	for _, bad := range []string{"\x00L", "\x00L\x00\x00", "\x00L\x00\x05{}\x00", "\x00L\x00\x00\x05abc"} {
		if _, _, ok := envelope.Open(bad); ok {
			t.Errorf("%q: got an envelope, want none", bad)
		}
	}
}

// TestGolden reads what every release has stored, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	golden.Check(t, "envelope", string(envelope.Wrap(`{"tag":"vip"}`, []byte("data"))), func(t *testing.T, stored string) {
		if header, data, ok := envelope.Open(stored); header != `{"tag":"vip"}` || data != "data" || !ok {
			t.Errorf("got %q, %q, %v", header, data, ok)
		}
	})
}
