// Package remote answers one question: what does a node say when it is asked over
// HTTP? [Client] asks; an answer that is a problem (RFC 9457) is a [web.Problem], no
// answer is [ErrUnreachable]. There are no goroutines and no retries.
package remote
