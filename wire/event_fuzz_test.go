package wire

import (
	"bytes"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// FuzzParseEvent checks that an event is refused, or reads the same after it is written.
func FuzzParseEvent(f *testing.F) {
	for _, seed := range []string{
		`{"event":{"kind":"exhausted","queue":"orders","shard":3,"jobs":[{"id":"a","retry_count":2,"payloads":[{"score":1.5,"payload":{"x":1},"header":{"tag":"vip"}}],"error":"no"}]}}`,
		`{"event":{"kind":"recovered","queue":"orders","shard":3,"recovered":12,"crashes":1,"from":"n2/1"}}`, `{"event":{"kind":"buried","queue":"q","jobs":[{"id_base64":"/w=="}]}}`,
		`{"event":{"kind":"x","queue":"q","jobs":[{"id":"a","payloads":[{"score":1,"payload":{"$base64":"AP8="}}]}]}}`, `{"event":null}`, `{"event":{}}`, `{}`, `[]`, `{"event":{"kind":"x","queue":"q","jobs":[{}]}}`,
		`{"event":{"kind":"x","queue":"q","jobs":[{"id":"a","payloads":[{}]}]}}`, `{"event":{"kind":"x","queue":"q","jobs":[{"id":"a","payloads":[{"payload":null}]}]}}`, "{\"event\":{\"kind\":\"x\",\"queue\":\"\xff\"}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, ok, err := ParseEvent(text)
		if err != nil || !ok {
			return
		}
		if e.Shard.Queue == "" || e.Kind == "" {
			t.Fatalf("%q: got %+v, want kind and queue", text, e)
		}
		for i := range e.Jobs {
			if e.Jobs[i].ID == "" || len(e.Jobs[i].ID) > lowkiq.MaxIDBytes {
				t.Fatalf("%q: got an id of %d bytes", text, len(e.Jobs[i].ID))
			}
		}
		once := AppendEvent(nil, e)
		again, ok, err := ParseEvent(once)
		if err != nil || !ok {
			t.Fatalf("%q is written as %q, which is read with %v, %v", text, once, ok, err)
		}
		if twice := AppendEvent(nil, again); !bytes.Equal(once, twice) {
			t.Errorf("%q: written as %q, then as %q", text, once, twice)
		}
	})
}
