package verdict

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// EncodePatience is the time that middlewares and codecs have to encode the follow-ups of a job.
const EncodePatience = 10 * time.Second

// ErrSlow means that middlewares and codecs have not encoded follow-ups within EncodePatience.
var ErrSlow = fmt.Errorf("the middlewares and the codec have not encoded it within %s", EncodePatience)

// Encode calls middlewares and codecs, which are code of users. It returns an ErrSlow after EncodePatience, and an error
// when ctx ends, even if the code ignores its context. A panic becomes a PanicError.
func Encode[T any](ctx context.Context, encode func(context.Context) (T, error)) (encoded T, err error) {
	type result struct {
		encoded T
		err     error
	}
	within, cancel := context.WithTimeoutCause(ctx, EncodePatience, ErrSlow)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		var of result
		defer func() {
			if value := recover(); value != nil {
				of.err = &PanicError{Value: value, Stack: debug.Stack()}
			}
			done <- of
		}()
		of.err = errors.New("a middleware or a codec called runtime.Goexit")
		of.encoded, of.err = encode(within)
	}()
	select {
	case of := <-done:
		return of.encoded, of.err
	case <-within.Done():
		return encoded, context.Cause(within)
	}
}
