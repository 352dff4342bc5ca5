// Package hosts says what a host:port means to other hosts: who can reach it, and at which
// address they do.
package hosts

import (
	"errors"
	"net"
	"regexp"
)

// Name finds host names; more is up to the resolver.
var Name = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$`)

// Loopback reports whether only this host can reach an address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Everywhere reports whether an address is all of the host's.
func Everywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// ErrNoAddress is what Outward says of a host without a network.
var ErrNoAddress = errors.New("this host has none beyond loopback")

// Outward is the address at which other hosts most likely reach this one.
func Outward() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	return outward(addresses)
}

// outward chooses a private IPv4 address, else a public one, else IPv6.
func outward(addresses []net.Addr) (string, error) {
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
