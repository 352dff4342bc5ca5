// Package hosts says which other hosts can reach a host:port, and at what address.
package hosts

import (
	"errors"
	"net"
	"regexp"
)

var name = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// IsName reports whether text has the form of a host name. The resolver decides about the rest.
func IsName(text string) bool { return len(text) <= 253 && name.MatchString(text) }

// IsLoopback reports whether only this host can reach an address.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// IsEverywhere reports whether an address stands for all addresses of its host.
func IsEverywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// ErrNoAddress is returned by OutwardAddress on a host without a network.
var ErrNoAddress = errors.New("this host has none beyond loopback")

// OutwardAddress returns the address where other hosts most likely reach this host.
func OutwardAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	return chooseAddress(addresses)
}

// chooseAddress prefers a private IPv4 address, then a public IPv4 address, then an IPv6 address.
func chooseAddress(addresses []net.Addr) (string, error) {
	best, rank := "", 0
	for _, address := range addresses {
		network, ok := address.(*net.IPNet)
		if !ok || !network.IP.IsGlobalUnicast() {
			continue
		}
		r := 1
		if network.IP.To4() != nil {
			r = 2
			if network.IP.IsPrivate() {
				r = 3
			}
		}
		if r > rank {
			best, rank = network.IP.String(), r
		}
	}
	if best == "" {
		return "", ErrNoAddress
	}
	return best, nil
}
