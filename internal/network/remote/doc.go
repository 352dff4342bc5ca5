// Package remote answers one question: what does a node answer over HTTP? [Client] sends the requests.
// An answer that is a problem (RFC 9457) becomes a [web.Problem], and a missing answer becomes
// [ErrUnreachable]. There are no goroutines and no retries.
package remote
