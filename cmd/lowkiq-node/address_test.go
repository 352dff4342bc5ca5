package main

import (
	"net"
	"strconv"
	"testing"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/node"
)

// rowOfPorts are ports of the test's own, from the first that a node tries (gossip, Raft, HTTP)
// to the last of its next try.
func rowOfPorts(t *testing.T) (gossip int, addresses []string) {
	t.Helper()
	addresses = redistest.Addresses(t, portStep+httpPort+1)
	_, text, err := net.SplitHostPort(addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	if gossip, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return gossip, addresses
}

// These tests run alone: a process that another test forks has, until its exec, a copy of the
// ports that were closed just before.

func TestFreePortsAreFilledIn(t *testing.T) {
	gossip, addresses := rowOfPorts(t)
	p := ports{next: gossip}
	if got := p.fill(node.Config{}); got.Bind != addresses[0] || got.HTTP != addresses[2] {
		t.Errorf("got gossip %s and HTTP %s, want %s and %s", got.Bind, got.HTTP, addresses[0], addresses[2])
	}
	for _, taken := range addresses[:httpPort+1] {
		l, err := net.Listen("tcp", taken)
		if err != nil {
			t.Fatal(err)
		}
		p := ports{next: gossip}
		if got := p.fill(node.Config{}); got.Bind != addresses[portStep] || got.HTTP != addresses[portStep+httpPort] {
			t.Errorf("with %s taken: got gossip %s and HTTP %s, want the next ports", taken, got.Bind, got.HTTP)
		}
		l.Close()
	}
}

// A node has its Raft port and opens its gossip, while others look for ports: none of them may
// be in its way.
func TestLookingForPortsIsInNobodysWay(t *testing.T) {
	gossip, addresses := rowOfPorts(t)
	raft, err := net.Listen("tcp", addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	defer raft.Close()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				p := ports{next: gossip}
				p.fill(node.Config{HTTP: "127.0.0.1:0"})
			}
		}
	}()
	for range 500 {
		l, err := net.Listen("tcp", addresses[0])
		if err != nil {
			t.Errorf("the gossip of a node that has its Raft port: %v", err)
			break
		}
		l.Close()
	}
	close(stop)
	<-ended
}
