package redisdb

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestUnreachable: what happened to a connection says that Redis could not be asked; what happened to a file does not, though the
// number of each system error is a net.Error.
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
