package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Servers live below the range that systems hand out to outgoing connections
// (32768 and up on Linux), so that a server may stop and come back to its port.
// A cluster's bus port is its port + busOffset, so both ranges must stay apart.
const (
	firstPort  = 14000
	ports      = 5000
	lockOffset = 5000
	busOffset  = 10000
)

// Addresses returns addresses of 127.0.0.1 with successive ports, for what a test starts,
// and starts again. They are this test's until it ends: no system hands them out,
// and no other test gets them from here.
func Addresses(t testing.TB, n int) (addresses []string) {
	t.Helper()
	row, err := reserveRow(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range row {
		t.Cleanup(p.release)
		addresses = append(addresses, p.addr())
	}
	return addresses
}

// port is a TCP port of 127.0.0.1 that belongs to this process, whether something
// listens on it or not. Listening on the port lockOffset above is what makes it so:
// the lock ends with the process, whatever way the process ends.
type port struct {
	number int
	lock   net.Listener
}

// reserve picks a port at random: tests of other packages do so at the same time.
func reserve() (*port, error) {
	row, err := reserveRow(1)
	if err != nil {
		return nil, err
	}
	return row[0], nil
}

// reserveRow picks n successive ports.
func reserveRow(n int) (row []*port, err error) {
	for range 100 {
		if row, err = reserveNumbers(firstPort+rand.IntN(ports-n+1), n); err == nil {
			return row, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports in a row in %d to %d after 100 tries: %w", n, firstPort, firstPort+ports-1, err)
}

func reserveNumbers(first, n int) (row []*port, err error) {
	for number := first; number < first+n; number++ {
		p, err := reserveNumber(number)
		if err != nil {
			for _, p := range row {
				p.release()
			}
			return nil, err
		}
		row = append(row, p)
	}
	return row, nil
}

func reserveNumber(number int) (*port, error) {
	lock, err := net.Listen("tcp", address(number+lockOffset))
	if err != nil {
		return nil, err
	}
	for _, n := range []int{number, number + busOffset} {
		if err := checkFree(n); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return &port{number: number, lock: lock}, nil
}

func (p *port) addr() string { return address(p.number) }

func (p *port) release() { _ = p.lock.Close() }

func checkFree(number int) error {
	l, err := net.Listen("tcp", address(number))
	if err != nil {
		return err
	}
	return l.Close()
}

// listen listens at a port that is the test's. A process that the test forks at this moment
// has, until its exec, a copy of what was closed just before.
func listen(addr string) (listener net.Listener, err error) {
	if await(nil, func() bool {
		listener, err = net.Listen("tcp", addr)
		return !errors.Is(err, syscall.EADDRINUSE)
	}) != nil {
		return nil, err
	}
	return listener, err
}

func address(number int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(number)) }
