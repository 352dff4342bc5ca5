package lowkiq

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mux is a [Handler] that chooses a function by the type of a payload. Its functions are called as those
// of [Each] are. All types of a queue share its order: the payloads of an id come in the order of their
// scores, whatever their types are.
//
// Add all functions before the node runs.
type Mux struct {
	// RetryUnknown fails ids with payloads of unknown types, so that they are retried. A node with a
	// newer program may know the type. Otherwise such payloads go to the morgue, and the other payloads
	// of the id come again at once.
	RetryUnknown bool

	typeOf func(Payload) (string, error)
	byType map[string]func(Payload) (payloadFunc, error)
}

// NewMux returns a mux without functions. typeOf returns the type of a payload. A payload whose type
// cannot be read goes to the morgue. [TypeHeader] and [TypeField] return such functions. NewMux panics if typeOf is nil.
func NewMux(typeOf func(Payload) (string, error)) *Mux {
	if typeOf == nil {
		panic("lowkiq: a nil function for the types of payloads")
	}
	return &Mux{typeOf: typeOf, byType: map[string]func(Payload) (payloadFunc, error){}}
}

// TypeHeader reads types from a header of payloads. A payload without it has the type "".
func TypeHeader(name string) func(Payload) (string, error) {
	return func(p Payload) (string, error) { return p.Header.Get(name), nil }
}

// TypeField reads types from a field of payloads that are JSON objects. The field must be a string.
func TypeField(name string) func(Payload) (string, error) {
	return func(p Payload) (string, error) {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(p.Data, &object); err != nil {
			return "", err
		}
		field, ok := object[name]
		if !ok {
			return "", fmt.Errorf("it has no field %q", name)
		}
		var text string
		if err := json.Unmarshal(field, &text); err != nil {
			return "", fmt.Errorf("field %q: %w", name, err)
		}
		return text, nil
	}
}

// HandleType adds the function for a type to m. The payloads of the type are decoded as by [Each]. It panics
// if f is nil, or m has a function for the type already.
func HandleType[P any](m *Mux, name string, f func(ctx context.Context, id string, payload P) error) {
	if f == nil {
		panic(fmt.Sprintf("lowkiq: a nil function for the type %q", name))
	}
	if m.byType[name] != nil {
		panic(fmt.Sprintf("lowkiq: two functions for the type %q", name))
	}
	m.byType[name] = func(p Payload) (payloadFunc, error) { return bindPayload(decodeJSON, p.Data, f) }
}

// Handle handles a batch.
func (m *Mux) Handle(ctx context.Context, batch *Batch) error {
	return eachHandler{m.bind}.Handle(ctx, batch)
}

func (m *Mux) bind(p Payload) (payloadFunc, error) {
	name, err := m.typeOf(p)
	if err != nil {
		return nil, fmt.Errorf("its type: %w", err)
	}
	bind := m.byType[name]
	if bind == nil {
		err := fmt.Errorf("unknown type %q; the mux has %s", name, m.types())
		if m.RetryUnknown {
			return nil, &retryError{err}
		}
		return nil, err
	}
	call, err := bind(p)
	if err != nil {
		return nil, fmt.Errorf("type %q: %w", name, err)
	}
	return call, nil
}

// types lists the types for an error.
func (m *Mux) types() string {
	if len(m.byType) == 0 {
		return "no types"
	}
	return strings.Join(slices.Sorted(maps.Keys(m.byType)), ", ")
}
