package hosts

import (
	"errors"
	"net"
	"strings"
	"testing"
)

func TestOutward(t *testing.T) {
	for _, c := range []struct{ name, addresses, want string }{
		{"a container", "127.0.0.1/8 172.18.0.3/16", "172.18.0.3"},
		{"two networks: the first", "127.0.0.1/8 10.1.0.3/16 172.18.0.3/16", "10.1.0.3"},
		{"private before public", "127.0.0.1/8 203.0.113.7/24 192.168.1.4/24", "192.168.1.4"},
		{"public", "::1/128 2001:db8::5/64 203.0.113.7/24", "203.0.113.7"},
		{"IPv6 only", "127.0.0.1/8 ::1/128 fe80::1/64 2001:db8::5/64", "2001:db8::5"},
		{"nothing", "127.0.0.1/8 ::1/128 fe80::1/64", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addresses []net.Addr
			for _, text := range strings.Fields(c.addresses) {
				ip, network, err := net.ParseCIDR(text)
				if err != nil {
					t.Fatal(err)
				}
				addresses = append(addresses, &net.IPNet{IP: ip, Mask: network.Mask})
			}
			got, err := chooseAddress(addresses)
			if got != c.want || (c.want == "") != errors.Is(err, ErrNoAddress) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestIsName(t *testing.T) {
	for text, want := range map[string]bool{
		"n1": true, "redis_1.example.org": true, strings.Repeat("a", 253): true,
		"": false, "-a": false, "a b": false, "a\n": false, strings.Repeat("a", 254): false,
	} {
		if IsName(text) != want {
			t.Errorf("%.10q of %d bytes: got %t, want %t", text, len(text), !want, want)
		}
	}
}
