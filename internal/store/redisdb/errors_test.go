package redisdb

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestUnreachable checks that a failed connection means that Redis could not be asked. A failed file does not, though
// each system error number is a net.Error.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, true},
		{fmt.Errorf("read: %w", syscall.ECONNRESET), true},
		{io.ErrUnexpectedEOF, true},
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, false},
		{fmt.Errorf("write: %w", syscall.EIO), false},
		{nil, false},
	} {
		if got := Unreachable(c.err); got != c.want {
			t.Errorf("%v: got %t, want %t", c.err, got, c.want)
		}
	}
}

// answer is an error that Redis answers.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// TestRedisClusterByAnotherURL checks that a server of a Redis Cluster redirects a client that takes it for a single
// Redis.
func TestRedisClusterByAnotherURL(t *testing.T) {
	t.Parallel()
	want := "push: redis h:1 is a server of a Redis Cluster (its URL must be redis+cluster://): MOVED 5 h:2"
	if got := (&DB{address: "h:1"}).Explain("push", answer("MOVED 5 h:2")); got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if got := (&DB{address: "h:1", Sharded: true}).Explain("push", answer("MOVED 5 h:2")); got.Error() != "push: redis h:1 answered: MOVED 5 h:2" {
		t.Errorf("a client of the cluster: got %v", got)
	}
}
