package lowkiq_test

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq"
)

// Paid and Shipped are payloads of a queue with several types.
type (
	Paid    struct{ Amount int }
	Shipped struct{ By string }
)

// A queue of orders has payloads of two types. The payloads of an order come in the order of their pushes,
// whatever their types are.
func ExampleMux() {
	mux := lowkiq.NewMux(lowkiq.TypeField("type"))
	lowkiq.HandleType(mux, "paid", func(_ context.Context, id string, p Paid) error {
		fmt.Println(id, "paid", p.Amount)
		return nil
	})
	lowkiq.HandleType(mux, "shipped", func(ctx context.Context, id string, s Shipped) error {
		fmt.Println(id, "shipped by", s.By, "in attempt", lowkiq.JobFrom(ctx).Attempt)
		return nil
	})

	fmt.Println(mux.Handle(context.Background(), batchOf(`{"type":"paid","amount":3}`, `{"type":"shipped","by":"air"}`)))
	fmt.Println(mux.Handle(context.Background(), batchOf(`{"type":"lost"}`)))
	// Output:
	// invoice-1 paid 3
	// invoice-2 shipped by air in attempt 1
	// <nil>
	// invoice-1: payload 1 of 1: unknown type "lost"; the mux has paid, shipped
}
