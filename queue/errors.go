package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Owner is who holds a shard's claim. The zero value: nobody ever did.
type Owner struct {
	Instance string // "" if the shard is unowned
	Fence    int64
}

// FencedError is Redis's answer to an instance that does not hold the claim. It is
// lowkiq.ErrFenced.
type FencedError struct{ Owner Owner }

func (e *FencedError) Error() string {
	return fmt.Sprintf("%v: %s holds it with fence %d", lowkiq.ErrFenced, e.Owner.Instance, e.Owner.Fence)
}

func (e *FencedError) Unwrap() error { return lowkiq.ErrFenced }

// fencedError reads "FENCED holder fence".
func fencedError(err error) error {
	words := strings.Fields(strings.TrimPrefix(err.Error(), "ERR "))
	if len(words) < 3 {
		return &FencedError{}
	}
	fence, _ := strconv.ParseInt(words[len(words)-1], 10, 64)
	return &FencedError{Owner{Instance: words[len(words)-2], Fence: fence}}
}

// ErrHeld means that another instance holds the claim, or took or left it since it
// was read.
var ErrHeld = errors.New("the shard's claim is held or has changed")

// Transient reports whether an operation that failed with err may succeed when it is
// repeated: Redis was out of reach, starting, failing over, moving a slot, read-only
// or out of memory or connections. Whether it was executed is unknown if the connection broke.
func Transient(err error) bool {
	for _, prefix := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "OOM", "MOVED", "ASK", "BUSY", "NOREPLICAS", "MISCONF", "UNKILLABLE", "max number of clients"} {
		if says(err, prefix) {
			return true
		}
	}
	return Unreachable(err)
}

// says reports whether Redis answered with this kind of error. Redis 6.2 wraps what a
// command inside a script says: "ERR Error running script (…): @user_script: 1: -OOM …".
func says(err error, prefix string) bool {
	if redis.HasErrorPrefix(err, prefix) {
		return true
	}
	return redis.HasErrorPrefix(err, "Error running script") && strings.Contains(err.Error(), ": -"+prefix+" ")
}

// Unreachable reports whether err says that Redis could not be asked or did not answer.
func Unreachable(err error) bool {
	var answer redis.Error
	if err == nil || errors.As(err, &answer) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var netErr net.Error
	if errors.As(err, &netErr) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, broken) {
			return true
		}
	}
	// go-redis has no names for what its pools, sentinels and clusters say.
	return strings.HasPrefix(root(err).Error(), "redis: ")
}

// root is the error at the end of a chain.
func root(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
