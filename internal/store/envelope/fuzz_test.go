package envelope_test

import (
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// FuzzOpen checks that Open refuses stored bytes, or returns parts that make the same bytes.
func FuzzOpen(f *testing.F) {
	for _, seed := range []string{"", "data", "\x00L", "\x00L\x00\x00\x00", "\x00L\x00\x02{}\x03adrdata", "\x00L\x00\x00\x00\x00Ldata", "\x00L\xff\xff{}\x00", "\x00L\x00\x02{}\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		c, ok := envelope.Open(stored)
		if !ok {
			return
		}
		if len(c.Header)+len(c.Address)+len(c.Data) > len(stored) {
			t.Errorf("%q: got more than there is: %q", stored, c)
		}
		again, ok := envelope.Open(string(envelope.Wrap(c.Header, c.Address, []byte(c.Data))))
		if !ok || again != c {
			t.Errorf("%q: got %q, and once more %q, %v", stored, c, again, ok)
		}
	})
}

// FuzzAddress checks that an address is refused, or equals what Address writes of its parts.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{"rabc 60000 lk:{c}:replies:1", "ra 1 c", "ra 01 c", "ra 0 c", "ra 604800000 c", "ra 604800001 c", "r-_ 1 \n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		c, ok := envelope.ParseAddress(address)
		if !ok {
			return
		}
		again, ok := envelope.ParseAddress(envelope.Address(c.Token, c.Keep, c.Channel))
		if !ok || again != c || c.Keep <= 0 || c.Keep > envelope.MaxKeep {
			t.Errorf("%q: got %+v, and once more %+v, %v", address, c, again, ok)
		}
	})
}

// FuzzReadReply checks that a parsed reply holds nothing that its bytes lack.
func FuzzReadReply(f *testing.F) {
	for _, seed := range []string{"done", "done\n", "done\n42", "buried\nno stock", "deleted", "expired", "pending", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reply := lowkiq.Reply{ID: "a"}
		if err := envelope.ReadReply(&reply, text, nil); err != nil {
			t.Fatal(err)
		}
		if len(reply.State)+len(reply.Result)+len(reply.Error) > len(text) || len(text) > 0 && reply.State == "" && text[0] != '\n' {
			t.Errorf("%q: got %+v", text, reply)
		}
	})
}
