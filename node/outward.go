package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
)

// reachable fills in Advertise where the node listens at all addresses, of which others
// can use only one.
func (cfg Config) reachable() (Config, error) {
	if cfg.Advertise != "" || !everywhere(cfg.Bind) && !everywhere(cfg.HTTP) {
		return cfg, nil
	}
	addresses, err := net.InterfaceAddrs()
	if err == nil {
		cfg.Advertise, err = outward(addresses)
	}
	if err != nil {
		return cfg, fmt.Errorf("address for the other nodes: %w; configure advertise", err)
	}
	return cfg, nil
}

// hostRule finds host names; more is up to the resolver.
var hostRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$`)

// checkAdvertise says what is wrong with the host that others are told.
func checkAdvertise(host string) error {
	if _, err := netip.ParseAddr(host); err == nil || host == "" || hostRule.MatchString(host) {
		return nil
	}
	return fmt.Errorf("advertise %.60q (%d bytes): want a host name of at most 253 bytes or an IP address, without port and brackets", host, len(host))
}

// everywhere reports whether an address is all of the host's.
func everywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

var errNoAddress = errors.New("this host has none beyond loopback")

// outward chooses the address at which other hosts most likely reach this one: a private
// IPv4 address, else a public one, else IPv6.
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
		return "", errNoAddress
	}
	return best, nil
}
