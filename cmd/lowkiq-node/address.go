package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The ports of a node for which none are configured: the first three from 7946, in steps
// of 10, that are free: gossip, Raft above it, HTTP above that. So several nodes of one
// host need no configuration.
const (
	firstPort = 7946
	portStep  = 10
	portTries = 200
	raftPort  = 1 // above gossip's
	httpPort  = 2
)

// ports fills in the addresses that are not configured.
type ports struct {
	next int // the first port to try; 0 = firstPort
	base int // the port chosen last
}

// fill chooses what cfg leaves open.
func (p *ports) fill(cfg setup) setup {
	gossip, http := cfg.node.Bind == "", cfg.web.Address == ""
	if !gossip && !http {
		return cfg
	}
	p.base = max(p.next, firstPort)
	for range portTries {
		if (!gossip || free(p.base+raftPort, p.base)) && (!http || free(p.base+httpPort)) {
			break
		}
		p.base += portStep
	}
	p.next = p.base + portStep
	if gossip {
		cfg.node.Bind = local(p.base)
	}
	if http {
		cfg.web.Address = local(p.base + httpPort)
	}
	return cfg
}

// collided reports whether another process took a chosen port before this one could.
func (p *ports) collided(err error) bool {
	var op *net.OpError
	if p.base == 0 || !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Addr == nil {
		return false
	}
	at := op.Addr.String()
	return at == local(p.base+raftPort) || at == local(p.base+httpPort)
}

// listening says which setting names an address at which the node cannot listen: http is that of
// the API's address.
func listening(err error, address, http, bind string) error {
	if err == nil || !slices.ContainsFunc(notListening, func(no syscall.Errno) bool { return strings.Contains(err.Error(), "bind: "+no.Error()) }) {
		return err // gossip's library hands on the text only
	}
	setting := bind
	var op *net.OpError
	if errors.As(err, &op) && op.Addr != nil && portOf(op.Addr.String()) == portOf(address) {
		setting = http
	}
	return fail(exitUsage, "%w: choose another address with %s", err, setting)
}

var notListening = []syscall.Errno{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EACCES}

// portOf is the port of an address, "" if it has none.
func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// free reports whether one can listen at all ports, by TCP and by UDP. It tries the second
// while it holds the first, so that no other process's gossip is ever in the way of the gossip of a
// node that has its Raft port already: that could not take other ports any more.
func free(ports ...int) bool {
	for _, port := range ports {
		tcp, err := net.Listen("tcp", local(port))
		if err != nil {
			return false
		}
		defer tcp.Close()
		udp, err := net.ListenPacket("udp", local(port))
		if err != nil {
			return false
		}
		defer udp.Close()
	}
	return true
}

// gossipKeys reads AES keys from a file: base64, one a line, the first one encrypts.
func gossipKeys(file string) ([][]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d is not base64: make a key with: openssl rand -base64 32", file, i+1)
		}
		if n := len(key); n != 16 && n != 24 && n != 32 {
			return nil, fmt.Errorf("%s: the key in line %d has %d bytes, want 16, 24 or 32", file, i+1, n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key; make one with: openssl rand -base64 32", file)
	}
	return keys, nil
}
