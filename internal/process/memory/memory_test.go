package memory

import (
	"context"
	"errors"
	"testing"
)

// No reservations exceed the budget together; a refused one holds nothing.
func TestTake(t *testing.T) {
	t.Parallel()
	b := New(100)
	first, second := b.Account(), b.Account()
	for _, c := range []struct {
		from *Account
		n    int64
		want error
		used int64
	}{
		{first, 60, nil, 60},
		{second, 50, ErrBusy, 60},
		{second, 101, ErrTooLarge, 60},
		{second, 40, nil, 100},
		{second, 1, ErrBusy, 100},
		{first, 41, ErrTooLarge, 100},
		{first, 0, nil, 100},
	} {
		if err := c.from.Take(c.n); !errors.Is(err, c.want) || b.Used() != c.used {
			t.Errorf("take %d: got %v and %d used, want %v and %d", c.n, err, b.Used(), c.want, c.used)
		}
	}
	first.Give(10)
	second.Close()
	if b.Used() != 50 {
		t.Errorf("got %d used, want 50", b.Used())
	}
	first.Give(1000)
	if b.Used() != 0 {
		t.Errorf("got %d used after all was given back, want 0", b.Used())
	}
}

// An account that has the whole budget gets no more for nothing: alone it may have twice that at
// most, and while it does, others get nothing.
func TestTakeAlone(t *testing.T) {
	t.Parallel()
	b := New(100)
	alone, other := b.Account(), b.Account()
	if err := alone.TakeAlone(150); err != nil {
		t.Fatal(err)
	}
	if err := alone.TakeAlone(51); !errors.Is(err, ErrTooLarge) {
		t.Errorf("201 of 100: got %v, want %v", err, ErrTooLarge)
	}
	if err := alone.Take(1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a read besides: got %v, want %v", err, ErrTooLarge)
	}
	if err := other.TakeAlone(1); !errors.Is(err, ErrBusy) {
		t.Errorf("another one: got %v, want %v", err, ErrBusy)
	}
	alone.Close()
	if err := alone.Take(1); err == nil {
		t.Error("a closed account: got memory, want none")
	}
	alone = b.Account()
	if err := other.Take(10); err != nil {
		t.Fatal(err)
	}
	if err := alone.TakeAlone(91); !errors.Is(err, ErrBusy) {
		t.Errorf("beside another one: got %v, want %v", err, ErrBusy)
	}
}

// What is taken in a scope is free after it; a context without an account has no bound.
func TestScope(t *testing.T) {
	t.Parallel()
	b := New(100)
	ctx := WithAccount(context.Background(), b.Account())
	if err := Take(ctx, 40); err != nil {
		t.Fatal(err)
	}
	inner, end := Scope(ctx)
	if err := Take(inner, 60); err != nil || !errors.Is(Take(inner, 1), ErrBusy) || b.Used() != 100 {
		t.Errorf("in the scope: got %v, %d used", err, b.Used())
	}
	end()
	if b.Used() != 40 {
		t.Errorf("after the scope: got %d used, want 40", b.Used())
	}
	without, end := Scope(context.Background())
	defer end()
	if err := Take(without, 1<<60); err != nil {
		t.Errorf("without an account: got %v", err)
	}
}
