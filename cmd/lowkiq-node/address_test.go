package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/web"
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
	if got := p.fillAddresses(setup{}); got.node.Bind != addresses[0] || got.web.Address != addresses[2] {
		t.Errorf("got gossip %s and HTTP %s, want %s and %s", got.node.Bind, got.web.Address, addresses[0], addresses[2])
	}
	for _, taken := range addresses[:httpPort+1] {
		l, err := net.Listen("tcp", taken)
		if err != nil {
			t.Fatal(err)
		}
		p := ports{next: gossip}
		if got := p.fillAddresses(setup{}); got.node.Bind != addresses[portStep] || got.web.Address != addresses[portStep+httpPort] {
			t.Errorf("with %s taken: got gossip %s and HTTP %s, want the next ports", taken, got.node.Bind, got.web.Address)
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
				p.fillAddresses(setup{web: web.Config{Address: "127.0.0.1:0"}})
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

// The setting is that of the port which is taken; gossip's library hands on a text only.
func TestListeningNamesTheSetting(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, refused := net.Listen("tcp", taken.Addr().String())
	for _, c := range []struct {
		err  error
		http string
		want string
	}{
		{fmt.Errorf("node: http: %w", refused), taken.Addr().String(), "node.http"},
		{fmt.Errorf("node: raft: %w", refused), "127.0.0.1:0", "node.bind"},
		{fmt.Errorf("node: raft: %w", refused), "", "node.bind"},
		{errors.New(refused.Error()), "127.0.0.1:0", "node.bind"},
	} {
		err := explainListenError(c.err, c.http, "node.http", "node.bind")
		about, setting := c.err.Error()+": another process has the port, ", "or choose another address with "+c.want
		if !strings.HasPrefix(err.Error(), about) || !strings.HasSuffix(err.Error(), setting) || exitCode(err) != exit.Unreachable {
			t.Errorf("got %v (code %d), want %s… %s", err, exitCode(err), about, setting)
		}
	}
	for no, code := range map[syscall.Errno]int{syscall.EADDRNOTAVAIL: exit.Unreachable, syscall.EACCES: exit.Usage} {
		if err := explainListenError(os.NewSyscallError("bind", no), "", "a", "b"); exitCode(err) != code {
			t.Errorf("got %v (code %d), want code %d", err, exitCode(err), code)
		}
	}
	for _, text := range []string{"something else", "dial unix /r.sock: connect: permission denied"} {
		other := errors.New(text)
		if err := explainListenError(other, "", "a", "b"); err != other {
			t.Errorf("got %v, want %v as it was", err, other)
		}
	}
}
