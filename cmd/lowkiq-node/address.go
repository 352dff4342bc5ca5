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

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
)

// The default ports of a node are the first three free ports from 7946, in steps of 10: gossip, Raft above it, HTTP above
// that. So several nodes on a host need no configuration.
const (
	firstPort = 7946
	portStep  = 10
	portTries = 200
	raftPort  = 1 // above the port of gossip
	httpPort  = 2
)

// ports fills in the addresses that are not configured.
type ports struct {
	next int // the first port to try; 0 stands for firstPort
	base int // the port that was chosen last
}

// fillAddresses chooses the addresses that cfg leaves open. A static node has no gossip.
func (p *ports) fillAddresses(cfg setup) setup {
	gossip, http := cfg.node.Bind == "" && cfg.node.Of == 0, cfg.web.Address == ""
	if !gossip && !http {
		return cfg
	}
	p.base = max(p.next, firstPort)
	for range portTries {
		if (!gossip || portsFree(p.base+raftPort, p.base)) && (!http || portsFree(p.base+httpPort)) {
			break
		}
		p.base += portStep
	}
	p.next = p.base + portStep
	if gossip {
		cfg.node.Bind = localAddress(p.base)
	}
	if http {
		cfg.web.Address = localAddress(p.base + httpPort)
	}
	return cfg
}

// collided reports whether another process took a chosen port before this process could.
func (p *ports) collided(err error) bool {
	var op *net.OpError
	if p.base == 0 || !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Addr == nil {
		return false
	}
	at := op.Addr.String()
	return at == localAddress(p.base+raftPort) || at == localAddress(p.base+httpPort)
}

// explainListenError adds to an error which setting names the address where the node cannot listen. http is the setting
// of the API's address, bind that of gossip.
func explainListenError(err error, address, http, bind string) error {
	if err == nil || !slices.ContainsFunc(notListening, func(no syscall.Errno) bool { return strings.Contains(err.Error(), "bind: "+no.Error()) }) {
		return err // the library of gossip keeps only the text
	}
	setting := bind
	var op *net.OpError
	if errors.As(err, &op) && op.Addr != nil && portOf(op.Addr.String()) == portOf(address) {
		setting = http
	}
	switch {
	case strings.Contains(err.Error(), syscall.EADDRINUSE.Error()):
		return exit.Fail(exit.Unreachable, "%w: another process has the port, such as another node or a process that is about to end (ss "+
			"-ltnup names it); wait for its end, or choose another address with %s", err, setting)
	case strings.Contains(err.Error(), syscall.EADDRNOTAVAIL.Error()):
		return exit.Fail(exit.Unreachable, "%w: this host has no such address now; choose another address with %s", err, setting)
	}
	return exit.Fail(exit.Usage, "%w: choose another address with %s", err, setting)
}

var notListening = []syscall.Errno{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EACCES}

// portOf returns the port of an address, or "".
func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

func localAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portsFree reports whether this process can listen at all ports, by TCP and by UDP. It tries the second port while it holds
// the first. Otherwise the gossip of another process could take the first port when a node has already chosen its Raft port,
// which it cannot change.
func portsFree(ports ...int) bool {
	for _, port := range ports {
		tcp, err := net.Listen("tcp", localAddress(port))
		if err != nil {
			return false
		}
		defer tcp.Close()
		udp, err := net.ListenPacket("udp", localAddress(port))
		if err != nil {
			return false
		}
		defer udp.Close()
	}
	return true
}

// gossipKeys reads AES keys in base64 from a file with a key per line. The first key encrypts.
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
			return nil, fmt.Errorf("%s: line %d is not base64; make a key with: openssl rand -base64 32", file, i+1)
		}
		if n := len(key); n != 16 && n != 24 && n != 32 {
			return nil, fmt.Errorf("%s: the key in line %d has %d bytes; it must have 16, 24 or 32", file, i+1, n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key; make one with: openssl rand -base64 32", file)
	}
	return keys, nil
}
