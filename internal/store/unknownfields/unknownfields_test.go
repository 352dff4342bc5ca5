package unknownfields

import "testing"

func TestKeep(t *testing.T) {
	t.Parallel()
	type known struct {
		B int  `json:"b"`
		A bool `json:"a,omitempty"`
	}
	type empty struct {
		A bool `json:"a,omitempty"`
	}
	for _, c := range []struct {
		name, stored string
		value        any
		want         string
	}{
		{"nothing else", `{"b":1}`, known{B: 2}, `{"b":2}`},
		{"ours stay in order", `{"a":true,"b":1}`, known{B: 1, A: true}, `{"b":1,"a":true}`},
		{"one that is left out", `{"a":true,"b":1}`, known{B: 1}, `{"b":1}`},
		{"others follow by name", `{"z":[1, 2],"b":1,"c":{"a":1e400},"d\"":null}`, &known{B: 2}, `{"b":2,"c":{"a":1e400},"d\"":null,"z":[1, 2]}`},
		{"others alone", `{"a":true,"z":12345678901234567890}`, empty{}, `{"z":12345678901234567890}`},
	} {
		got, err := Keep(c.value, []byte(c.stored))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s %v, want %s", c.name, got, err, c.want)
		}
	}
	if got, err := Keep(known{}, []byte("x")); err == nil {
		t.Errorf("what is no JSON: got %s, want an error", got)
	}
}
