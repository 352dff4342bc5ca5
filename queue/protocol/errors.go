package protocol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Owner names the holder of a shard's claim. It is the zero value if no instance has ever held the claim.
type Owner struct {
	Instance string // "" if the shard is unowned
	Fence    int64
}

// FencedError is the refusal of an instance that does not hold the claim. It wraps lowkiq.ErrFenced.
type FencedError struct{ Owner Owner }

func (e *FencedError) Error() string {
	return fmt.Sprintf("%v: %s holds it with fence %d", lowkiq.ErrFenced, e.Owner.Instance, e.Owner.Fence)
}

func (e *FencedError) Unwrap() error { return lowkiq.ErrFenced }

// errAnswerLost means that Redis has executed this request or a later request before, and that the answer is
// lost. The connection has sent the request again. The caller must ask with a new number.
var errAnswerLost = errors.New("the request was done before, and its answer is lost")

// readLimitError returns the error that a script of limits names: a lease that is gone, or an answer that is
// lost. It returns other errors as they are.
func readLimitError(err error) error {
	switch {
	case redisdb.Says(err, "LEASE"):
		return lease.ErrGone
	case redisdb.Says(err, "LATE"):
		return errAnswerLost
	}
	return err
}

// readRefusal returns the error that a script of a shard names: another instance holds the claim, or the queue
// is deleted. It returns other errors as they are.
func readRefusal(err error) error {
	switch {
	case err == nil:
		return nil
	case redisdb.Says(err, "FENCED"):
		return fencedError(redisdb.Answer(err))
	case redisdb.Says(err, "REMOVED"):
		return readMark(redisdb.Answer(err))
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

// ErrHeld means that another instance holds the claim, or that the claim has changed since it was read.
var ErrHeld = errors.New("the shard's claim is held or has changed")

// Transient reports whether an operation that failed with err may succeed when it is repeated. It does so if
// Redis was out of reach, starting, failing over, moving a slot, read-only, or out of memory or connections, or if the
// queue was being resharded. If the connection broke, it is unknown whether the operation was executed.
func Transient(err error) bool {
	if of := (*userError)(nil); errors.As(err, &of) {
		return false
	}
	return redisdb.Transient(err) || errors.Is(err, errAnswerLost) || errors.Is(err, ErrMoving)
}

// Denied reports whether Redis denies the client access, or is unfit. A password or a permission is missing, the check of the
// certificate fails, or the server is too old or may evict keys. A person mends that, at Redis or in the configuration of the
// client.
func Denied(err error) bool { return redisdb.Denied(err) }

// userError is an error of a middleware or a codec that encodes follow-ups. It is not Transient, whatever it wraps, because
// it says nothing about Redis.
type userError struct{ err error }

func (e *userError) Error() string { return "a middleware or the codec: " + e.err.Error() }
func (e *userError) Unwrap() error { return e.err }

// Unreachable reports whether err means that Redis could not be reached or did not answer.
func Unreachable(err error) bool { return redisdb.Unreachable(err) }
