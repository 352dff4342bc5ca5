package envelope_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
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

// An address is read as it was written; what cannot be told is refused before it is stored.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, want := range []envelope.Caller{
		{Token: "4Jw9vZ2xQ0aBc-DeF_iJkL", Keep: time.Minute, Channel: "lk:{c}:replies:1"},
		{Token: "a", Keep: envelope.MaxKeep, Channel: "with spaces  and\nlines"},
		{Token: "a", Keep: time.Millisecond, Channel: "c"},
	} {
		address := envelope.Address(want.Token, want.Keep, want.Channel)
		if got, ok := envelope.ParseAddress(address); got != want || !ok {
			t.Errorf("%q: got %+v, %v, want %+v", address, got, ok, want)
		}
		if err := envelope.Check(&lowkiq.Push{ID: "a", ReplyTo: address}, 1, 1); err != nil {
			t.Errorf("%q: got %v", address, err)
		}
	}
	for _, bad := range []string{
		"r", "ra", "ra 1", "ra 1 ", "a 1 c", "fa 1 c", "r 1 c", "ra -1 c", "ra 0 c", "ra 1.5 c", "ra 604800001 c", "ra 99999999999999999999 c",
		"ra! 1 c", "ra\n 1 c", "ra  1 c", " ra 1 c", "rä 1 c", "ra 1 " + strings.Repeat("c", envelope.MaxAddress),
	} {
		push := lowkiq.Push{ID: "a", ReplyTo: bad, Header: map[string]string{"h": "v"}}
		all := envelope.All([]lowkiq.Push{push})
		if err := envelope.Check(&all[0], 100, 100); !errors.Is(err, envelope.ErrReplyTo) || !strings.Contains(err.Error(), fmt.Sprintf("%.20q", bad)[:3]) {
			t.Errorf("%q: got %v, want %v", bad, err, envelope.ErrReplyTo)
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
