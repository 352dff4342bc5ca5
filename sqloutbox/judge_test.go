package sqloutbox

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// objections compares what handlers got with the committed payloads of each id, in order. A payload may come again, but
// then those behind it come again as well, so that the last payload of an id is always the last that a handler gets.
// Scores rise.
func objections(handled []handledPayload, committed map[string][]string) (found []string) {
	at := map[string]int{} // the place of the id's last payload, plus 1
	scores := map[string]map[float64]string{}
	for _, h := range handled {
		place := slices.Index(committed[h.id], h.payload) + 1
		switch last := at[h.id]; {
		case place == 0:
			found = append(found, fmt.Sprintf("id %s: %s was not committed", h.id, h.payload))
			continue
		case place > last+1:
			found = append(found, fmt.Sprintf("id %s: %s came behind %d payloads, want %d", h.id, h.payload, last, place-1))
		}
		at[h.id] = place
		if scores[h.id] == nil {
			scores[h.id] = map[float64]string{}
		}
		if other := scores[h.id][h.score]; other != "" && other != h.payload {
			found = append(found, fmt.Sprintf("id %s: %s and %s have the score %v", h.id, other, h.payload, h.score))
		}
		scores[h.id][h.score] = h.payload
	}
	for id, want := range committed {
		if at[id] != len(want) {
			found = append(found, fmt.Sprintf("id %s: the last payload is number %d, want %d", id, at[id], len(want)))
		}
		byScore := scores[id]
		var order []string
		for _, score := range slices.Sorted(func(yield func(float64) bool) {
			for s := range byScore {
				if !yield(s) {
					return
				}
			}
		}) {
			order = append(order, byScore[score])
		}
		if !slices.Equal(order, want) {
			found = append(found, fmt.Sprintf("id %s: by score the payloads are %v, want %v", id, order, want))
		}
	}
	return found
}

func TestObjections(t *testing.T) {
	t.Parallel()
	committed := map[string][]string{"x": {"a", "b", "c"}, "y": {"d"}}
	for _, c := range []struct{ handled, want string }{
		{"a1 b2 c3 d9", ""},
		{"d9 a1 b2 a1 b2 c3 b2 c3 d9", ""},
		{"a1 b2 d9", "number 2, want 3"},
		{"a1 c3 b2 c3 d9", "c came behind 1 payloads, want 2"},
		{"a1 b2 c3 b2 d9", "number 2, want 3"}, // an old payload is the last
		{"a1 b2 c3 c4 d9", "by score"},         // a repeated payload has another score
		{"a1 b2 c1 d9", "the score 1"},
		{"a1 b2 c3 e5 d9", "e was not committed"},
	} {
		var handled []handledPayload
		for word := range strings.FieldsSeq(c.handled) {
			id := "x"
			if word[0] == 'd' {
				id = "y"
			}
			handled = append(handled, handledPayload{id: id, payload: word[:1], score: float64(word[1] - '0')})
		}
		got := strings.Join(objections(handled, committed), "; ")
		if got != "" && c.want == "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.handled, got, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	unsent := fmt.Errorf("%w: full", queue.ErrUnsent)
	rows := []row{{seq: 1, id: "a"}, {seq: 2, id: "b", tries: 3}, {seq: 3, id: "a"}, {seq: 4, id: "c", tries: 90, age: time.Hour}}
	result := func(errs ...error) (results []queue.Result) {
		for _, err := range errs {
			results = append(results, queue.Result{Err: err})
		}
		return results
	}
	other := errors.New("not today")
	for name, c := range map[string]struct {
		results []queue.Result
		err     error
		want    outcome
		rows    []row // rows of the test if nil
	}{
		"all are stored":  {results: result(nil, nil, nil, nil), want: outcome{stored: []int64{1, 2, 3, 4}}},
		"a full id waits": {results: result(queue.ErrTooManyPayloads, nil, unsent, nil), want: outcome{stored: []int64{2, 4}, refused: []refusal{{rows[0], queue.ErrTooManyPayloads, time.Second, false}}}},
		"it waits longer": {results: result(nil, queue.ErrTooManyBytes, nil, nil), want: outcome{stored: []int64{1, 3, 4}, refused: []refusal{{rows[1], queue.ErrTooManyBytes, 8 * time.Second, false}}}},
		"an old row gets ten tries": {results: []queue.Result{{Err: other}}, rows: []row{{seq: 5, id: "a", tries: 8, age: 25 * time.Hour}},
			want: outcome{refused: []refusal{{row{seq: 5, id: "a", tries: 8, age: 25 * time.Hour}, other, time.Minute, false}}}},
		"an unknown queue gets ten tries": {err: other, rows: []row{{seq: 5, id: "a", tries: 8, age: 25 * time.Hour}, {seq: 6, id: "b", age: 25 * time.Hour}},
			want: outcome{closed: true, refused: []refusal{{row: row{seq: 5, id: "a", tries: 8, age: 25 * time.Hour}, err: other}}}},
		"the tenth refusal of a queue": {err: other, rows: []row{{seq: 5, id: "a", tries: 9}, {seq: 6, id: "b", age: 25 * time.Hour}},
			want: outcome{closed: true, refused: []refusal{{row: row{seq: 5, id: "a", tries: 9}, err: other}, {row: row{seq: 6, id: "b", age: 25 * time.Hour}, err: other, aside: true}}}},
		"an old row is set aside":          {results: result(nil, nil, nil, other), want: outcome{stored: []int64{1, 2, 3}, refused: []refusal{{rows[3], other, time.Minute, true}}}},
		"a large row is set aside":         {results: result(queue.ErrPayloadSize, nil, nil, nil), want: outcome{stored: []int64{2, 3, 4}, refused: []refusal{{rows[0], queue.ErrPayloadSize, time.Second, true}}}},
		"an overtaken row is set aside":    {results: result(other, nil, nil, nil), want: outcome{stored: []int64{2, 3, 4}, refused: []refusal{{rows[0], other, time.Second, true}}}},
		"Redis answers in part":            {results: result(nil, t.Context().Err(), queue.ErrClosed, unsent), want: outcome{stored: []int64{1, 2}, err: queue.ErrClosed}},
		"Redis is away":                    {err: queue.ErrClosed, want: outcome{err: queue.ErrClosed}},
		"the queue is unknown":             {err: other, want: outcome{closed: true, refused: []refusal{{row: rows[0], err: other}}}},
		"a middleware loses all responses": {results: result(nil), want: outcome{closed: true, refused: []refusal{{row: rows[0], err: errResults}}}},
	} {
		rows := rows
		if c.rows != nil {
			rows = c.rows
		}
		if got := judge(rows, c.results, c.err, time.Hour); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, *got, c.want)
		}
	}
}
