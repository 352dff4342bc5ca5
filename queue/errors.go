package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

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
// or out of memory. Whether it was executed is unknown if the connection broke.
func Transient(err error) bool {
	for _, prefix := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "OOM", "MOVED", "ASK", "BUSY", "NOREPLICAS", "MISCONF", "UNKILLABLE"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	var answer redis.Error
	if errors.As(err, &answer) {
		return false
	}
	return Unreachable(err)
}

// Unreachable reports whether err says that Redis could not be asked or did not answer.
func Unreachable(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, context.DeadlineExceeded) || isConnError(err)
}

func isConnError(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	var answer redis.Error
	if errors.As(err, &answer) || errors.Is(err, lowkiq.ErrFenced) || errors.Is(err, ErrHeld) {
		return false
	}
	text := err.Error()
	for _, part := range []string{"EOF", "connection", "broken pipe", "pool", "redis:", "sentinel"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
