// Package memory answers one question: may a request hold this much more memory?
//
// A server puts an [Account] into the context of each request. Code that reads data for the request
// reserves the size of the data with [Take] before it reads. A context without an account has no bound,
// as in programs that serve no requests.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Errors of a reservation.
var (
	// ErrBusy means that other requests hold the memory now. The same request may succeed later.
	ErrBusy = errors.New("other requests hold all of node.request_memory; try again")
	// ErrTooLarge means that the request needs more memory than all requests together may hold.
	ErrTooLarge = errors.New("the request needs more memory than node.request_memory allows")
)

// Budget is the memory that all accounts may hold together. It is safe for concurrent use.
type Budget struct {
	most int64

	mu   sync.Mutex
	used int64
}

// New returns a budget of the given number of bytes.
func New(most int64) *Budget { return &Budget{most: most} }

// Used returns how many bytes all accounts hold.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Account is a request's part of a budget. It is safe for concurrent use. A nil Account has no bound.
type Account struct {
	budget *Budget

	// Guarded by budget.mu:
	held   int64
	closed bool
}

// Account opens an account that holds nothing.
func (b *Budget) Account() *Account { return &Account{budget: b} }

// Take reserves n bytes. After ErrBusy or ErrTooLarge nothing is reserved.
func (a *Account) Take(n int64) error { return a.acquire(n, 1) }

// TakeAlone is like Take. In addition, the account may hold twice the budget while no other account
// holds anything. It is for request bodies, which have bounds of their own.
func (a *Account) TakeAlone(n int64) error { return a.acquire(n, 2) }

func (a *Account) acquire(n, alone int64) error {
	if a == nil || n <= 0 {
		return nil
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case a.closed: // its request has ended
		return ErrBusy
	case a.held+n > alone*b.most:
		return fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, a.held+n, b.most)
	case b.used+n > b.most && (alone == 1 || b.used != a.held):
		return ErrBusy
	}
	a.held += n
	b.used += n
	return nil
}

// Give ends the reservation of n bytes.
func (a *Account) Give(n int64) {
	if a == nil {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	n = min(n, a.held)
	a.held -= n
	a.budget.used -= n
}

// Close ends all reservations of the account. Later reservations fail with ErrBusy.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.used -= a.held
	a.held, a.closed = 0, true
}

type accountKey struct{}

// WithAccount returns a context with the account.
func WithAccount(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// AccountOf returns the account of a context, nil if it has no account.
func AccountOf(ctx context.Context) *Account {
	a, _ := ctx.Value(accountKey{}).(*Account)
	return a
}

// Take reserves n bytes in the account of a context.
func Take(ctx context.Context, n int64) error { return AccountOf(ctx).Take(n) }

// Give ends the reservation of n bytes in the account of a context.
func Give(ctx context.Context, n int64) { AccountOf(ctx).Give(n) }

// Scope returns a context with an account of its own, for data that a function drops before it
// returns. closeScope ends the reservations of that account.
func Scope(ctx context.Context) (scoped context.Context, closeScope func()) {
	outer := AccountOf(ctx)
	if outer == nil {
		return ctx, func() {}
	}
	inner := outer.budget.Account()
	return WithAccount(ctx, inner), inner.Close
}
