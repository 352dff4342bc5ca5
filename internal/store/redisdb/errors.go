package redisdb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Explain adds the operation and the Redis server to an error. redis.Nil becomes the error of an
// impossible answer, because answerOf has accepted nil already where a command may answer it.
func (db *DB) Explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, redis.Nil):
		err = wrongKind(what, nil)
	case Says(err, "OOM"):
		return fmt.Errorf("%s: redis %s is out of memory (raise maxmemory or let jobs drain): %w", what, db.address, err)
	case Says(err, "READONLY"):
		return fmt.Errorf("%s: redis %s is a replica and takes no writes (use the address of its master, or redis+sentinel://, which finds it): %w", what, db.address, err)
	}
	if mistake := db.mistakeIn(err); mistake != "" {
		return fmt.Errorf("%s: redis %s %s: %w", what, db.address, mistake, err)
	}
	if isAnswer(err) {
		return fmt.Errorf("%s: redis %s answered: %w", what, db.address, err)
	}
	var plain tls.RecordHeaderError
	var stranger x509.UnknownAuthorityError
	switch {
	case errors.As(err, &plain):
		return fmt.Errorf("%s: redis %s does not speak TLS (use redis:// instead of rediss://, or its TLS port): %w", what, db.address, err)
	case errors.As(err, &stranger):
		return fmt.Errorf("%s: redis %s: the authority of its certificate is not trusted (redis_tls.ca_file names it): %w", what, db.address, err)
	}
	return fmt.Errorf("%s: redis %s: %w%s", what, db.address, err, db.tlsAdvice(err))
}

// mistakeIn returns what an answer says about a mistake in the URL, and what the URL must be. It returns "" for other answers.
func (db *DB) mistakeIn(err error) string {
	text := err.Error()
	switch {
	case Says(err, "NOAUTH"):
		return "asks for a password (its URL must be redis://:PASSWORD@host:port, with a user redis://USER:PASSWORD@host:port)"
	case Says(err, "WRONGPASS"):
		return "does not know the user or the password in its URL"
	case Says(err, "DB index is out of range"):
		return "does not have this database (the number at the end of its URL must be less than databases in its redis.conf)"
	case Says(err, "This instance has cluster support disabled"):
		return "is no Redis Cluster (its URL must be redis://, or redis+sentinel:// with a sentinel)"
	case !db.Sharded && Says(err, "MOVED"):
		return "is a server of a Redis Cluster (its URL must be redis+cluster://)"
	case db.checkSentinels != nil && strings.Contains(text, "unknown command 'sentinel'"):
		return "is no sentinel (the URL must have the address of a sentinel, whose port is mostly 26379, or be redis:// for a Redis alone)"
	case strings.Contains(text, "redis: can't parse") || strings.Contains(text, "redis: invalid reply"):
		return "does not answer as a Redis does (its URL must have the port of Redis, mostly 6379)"
	}
	return ""
}

// tlsAdvice returns a hint if the first connection breaks as it does when only one side speaks TLS. A Redis without TLS takes
// the handshake for a command and waits for the rest.
func (db *DB) tlsAdvice(err error) string {
	switch {
	case db.links == nil || db.links.answered.Load():
		return ""
	case db.tls && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF)):
		return "; if it does not speak TLS, use redis:// instead of rediss://, or its TLS port"
	case !db.tls && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return "; if it speaks TLS, use rediss:// instead of redis://"
	}
	return ""
}

// isAnswer reports whether an error is an answer of Redis.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// Says reports whether Redis answered with an error of this kind. Redis 6.2 wraps the errors of
// commands inside scripts: "ERR Error running script (…): @user_script: 1: -OOM …".
func Says(err error, kind string) bool {
	if redis.HasErrorPrefix(err, kind) {
		return true
	}
	return redis.HasErrorPrefix(err, "Error running script") && strings.Contains(err.Error(), ": -"+kind+" ")
}

// Transient reports whether an operation that failed with err may succeed when it is repeated. That
// is so if Redis was out of reach, starting, failing over, moving a slot, read-only, or out of
// memory or connections, or if no replica has confirmed it. If the connection broke, it is unknown whether the operation was executed.
func Transient(err error) bool {
	for _, kind := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "OOM", "MOVED", "ASK", "BUSY", "NOREPLICAS", "MISCONF", "UNKILLABLE", "max number of clients"} {
		if Says(err, kind) {
			return true
		}
	}
	return Unreachable(err) || errors.Is(err, ErrUnreplicated)
}

// Denied reports whether Redis denies the client access, or is unfit. A password or a permission is missing, the check of the
// certificate fails, or the server is too old or may evict keys. A person mends that, at Redis or in the configuration of the
// client.
func Denied(err error) bool {
	var unfit *unfitError
	var cert *tls.CertificateVerificationError
	return errors.As(err, &unfit) || errors.As(err, &cert) || Says(err, "NOAUTH") || Says(err, "WRONGPASS") || isAnswer(err) && isRefusal(err.Error())
}

// unfitError is the error of a server that must not be used until a person has changed its settings.
type unfitError struct{ text string }

func (e *unfitError) Error() string { return e.text }

func unfit(format string, args ...any) error { return &unfitError{fmt.Sprintf(format, args...)} }

// Unserving returns the answer of a Redis that serves nobody, because it starts, fails over, runs a
// long script or has no connection left. It returns "" for any other error.
func Unserving(err error) string {
	for _, state := range []string{"LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "UNKILLABLE", "max number of clients"} {
		if Says(err, state) {
			return state
		}
	}
	return ""
}

// Unreachable reports whether Redis could not be asked or did not answer.
func Unreachable(err error) bool {
	if err == nil || isAnswer(err) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var netErr net.Error
	if errors.As(err, &netErr) {
		if _, bare := netErr.(syscall.Errno); !bare { // every errno is a net.Error, even that of a full disk
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
	// go-redis exports no names for the errors of its pools, sentinels and clusters.
	return strings.HasPrefix(rootError(err).Error(), "redis: ")
}

// rootError returns the error at the end of a chain.
func rootError(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// Answer returns the text of Redis's answer, "" if err is not an answer.
func Answer(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	return strings.TrimPrefix(answer.Error(), "ERR ")
}
