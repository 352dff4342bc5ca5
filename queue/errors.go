package queue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Owner is who holds a shard's claim. The zero value: no instance ever did.
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

// errAnswerLost: a request was sent again as its answer was lost.
var errAnswerLost = errors.New("the request was done before, and its answer is lost")

// limitRefusal is what a script says by name to an instance that asks for its share of a limit.
func limitRefusal(err error) error {
	switch {
	case redisdb.Says(err, "LEASE"):
		return lease.ErrGone
	case redisdb.Says(err, "LATE"):
		return errAnswerLost
	}
	return err
}

// refusal finds what a script says by name in an error.
func refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case redisdb.Says(err, "FENCED"):
		return fencedError(redisdb.Answer(err))
	case redisdb.Says(err, "REMOVED"):
		return removedError(redisdb.Answer(err))
	}
	return err
}

// fencedError reads "FENCED holder fence".
func fencedError(answer string) error {
	words := strings.Fields(answer)
	if len(words) < 3 {
		return &FencedError{}
	}
	return &FencedError{Owner{Instance: words[len(words)-2], Fence: redisdb.Int(words[len(words)-1])}}
}

// ErrHeld means that another instance holds the claim, or took or left it since it
// was read.
var ErrHeld = errors.New("the shard's claim is held or has changed")

// Transient reports whether an operation that failed with err may succeed when it is
// repeated: Redis was out of reach, starting, failing over, moving a slot, read-only
// or out of memory or connections. Whether it was executed is unknown if the connection broke.
func Transient(err error) bool { return redisdb.Transient(err) || errors.Is(err, errAnswerLost) }

// Unreachable reports whether err says that Redis could not be asked or did not answer.
func Unreachable(err error) bool { return redisdb.Unreachable(err) }
