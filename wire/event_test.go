package wire

import (
	"errors"
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	header, err := lowkiq.NewHeader(map[string]string{"tag": "vip"})
	if err != nil {
		t.Fatal(err)
	}
	for text, e := range map[string]*lowkiq.Event{
		`{"event":{"kind":"recovered","queue":"orders","shard":3,"recovered":12,"crashes":1,"from":"n2/1"}}`: {
			Kind: lowkiq.Recovered, Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Recovered: 12, Crashes: 1, From: "n2/1"},
		`{"event":{"kind":"exhausted","queue":"orders","shard":0,"jobs":[` +
			`{"id":"a\n","retry_count":2,"payloads":[{"score":1,"payload":{"n":1},"header":{"tag":"vip"}}],"error":"no \"stock\""},` +
			`{"id_base64":"/w==","retry_count":-1,"payloads":[{"score":2.5,"payload":{"$base64":"/w=="}}],"error":""}]}}`: {
			Kind: lowkiq.Exhausted, Shard: lowkiq.Shard{Queue: "orders"}, Jobs: []lowkiq.Ended{
				{Job: lowkiq.Job{ID: "a\n", RetryCount: 2, Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(`{"n":1}`), Header: header}}}, Err: errors.New(`no "stock"`)},
				{Job: lowkiq.Job{ID: "\xff", RetryCount: -1, Payloads: []lowkiq.Payload{{Score: 2.5, Data: []byte("\xff")}}}, Err: errors.New("")},
			}},
	} {
		if got := string(AppendEvent(nil, e)); got != text {
			t.Errorf("got  %s\nwant %s", got, text)
		}
		back, ok, err := ParseEvent([]byte(text))
		if err != nil || !ok || !reflect.DeepEqual(back, e) {
			t.Errorf("%s: got %+v, %v, %v", text, back, ok, err)
		}
		if b, err := ParseBatch([]byte(text)); err == nil {
			t.Errorf("%s was taken for the batch %+v", text, b)
		}
	}
	for text, isEvent := range map[string]bool{`{"queue":"orders","jobs":[{"id":"a"}]}`: false, `{"event":{"kind":"buried"}}`: true,
		`{"event":{"kind":"buried","queue":"q","jobs":[{"id":"a","payloads":[{"payload":{"$base64":"!"}}]}]}}`: true, `x`: false} {
		if e, ok, err := ParseEvent([]byte(text)); e != nil || ok != isEvent || (err == nil) != (text[0] == '{' && !isEvent) {
			t.Errorf("%s: got %+v, %v, %v", text, e, ok, err)
		}
	}
}
