package redisdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Explain says which operation and which Redis an error belongs to. A command that may answer nil has no error then.
func (db *DB) Explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, redis.Nil):
		err = wrongKind(what, nil)
	case Says(err, "OOM"):
		return fmt.Errorf("%s: redis %s is out of memory (raise maxmemory or let jobs drain): %w", what, db.address, err)
	case isAnswer(err):
		return fmt.Errorf("%s: redis %s answered: %w", what, db.address, err)
	}
	return fmt.Errorf("%s: redis %s: %w", what, db.address, err)
}

// isAnswer reports whether an error came from Redis itself.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// Says reports whether Redis answered with this kind of error. Redis 6.2 wraps what a
// command inside a script says: "ERR Error running script (…): @user_script: 1: -OOM …".
func Says(err error, kind string) bool {
	if redis.HasErrorPrefix(err, kind) {
		return true
	}
	return redis.HasErrorPrefix(err, "Error running script") && strings.Contains(err.Error(), ": -"+kind+" ")
}

// Transient reports whether an operation that failed with err may succeed when it is
// repeated: Redis was out of reach, starting, failing over, moving a slot, read-only
// or out of memory or connections. Whether it was executed is unknown if the connection broke.
func Transient(err error) bool {
	for _, kind := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "OOM", "MOVED", "ASK", "BUSY", "NOREPLICAS", "MISCONF", "UNKILLABLE", "max number of clients"} {
		if Says(err, kind) {
			return true
		}
	}
	return Unreachable(err)
}

// Unreachable reports whether err says that Redis could not be asked or did not answer.
func Unreachable(err error) bool {
	if err == nil || isAnswer(err) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var netErr net.Error
	if errors.As(err, &netErr) {
		if _, bare := netErr.(syscall.Errno); !bare { // each such number is a net.Error, that of a full disk, too
			return true
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
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

// Answer is what Redis said, if err has it.
func Answer(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	return strings.TrimPrefix(answer.Error(), "ERR ")
}
