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

// Ports are below the range that systems use for outgoing connections (32768 and up on Linux), so that a server may stop and
// come back to its port. The bus port of a cluster is its port + busOffset, so both ranges must stay apart.
const (
	firstPort  = 14000
	ports      = 5000
	lockOffset = 5000
	busOffset  = 10000
)

// Addresses returns addresses of 127.0.0.1 with successive ports, for servers that a test starts and restarts. They belong
// to this test until it ends. No system uses them, and no other test gets them here.
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

// port is a TCP port of 127.0.0.1 that belongs to this process, whether something listens on it or not. The process listens
// on the port lockOffset above as a lock, which ends with the process in any case.
type port struct {
	number int
	lock   net.Listener
}

// reservePort reserves a random port, because tests of other packages reserve ports at the same time.
func reservePort() (*port, error) {
	row, err := reserveRow(1)
	if err != nil {
		return nil, err
	}
	return row[0], nil
}

// reserveRow reserves n successive ports.
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
	lock, err := net.Listen("tcp", localAddress(number+lockOffset))
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

func (p *port) addr() string { return localAddress(p.number) }

func (p *port) release() { _ = p.lock.Close() }

func checkFree(number int) error {
	l, err := net.Listen("tcp", localAddress(number))
	if err != nil {
		return err
	}
	return l.Close()
}

// Listen listens at an address of [Addresses]. It retries while the address is in use, because a process that the test forks
// holds copies of listeners that were just closed until its exec.
func Listen(addr string) (listener net.Listener, err error) {
	if awaitCondition(nil, func() bool {
		listener, err = net.Listen("tcp", addr)
		return !errors.Is(err, syscall.EADDRINUSE)
	}) != nil {
		return nil, err
	}
	return listener, err
}

func localAddress(number int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(number)) }
