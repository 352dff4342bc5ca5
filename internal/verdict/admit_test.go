package verdict

import (
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

func TestAdmit(t *testing.T) {
	t.Parallel()
	const wait = time.Second
	late := &AtLimit{wait}
	for _, c := range []struct {
		name    string
		answers []GroupAnswer
		want    Admission
	}{
		{"no groups", nil, Admission{Refused: lowkiq.Failed{}}},
		{"all may", []GroupAnswer{{ID: "a:1", Group: "a:"}, {ID: "b:1", Group: "b:"}}, Admission{Refused: lowkiq.Failed{}, Groups: []string{"a:", "b:"}, Passed: true}},
		{"none may", []GroupAnswer{{ID: "a:1", Group: "a:", Wait: wait}, {ID: "a:2", Group: "a:", Wait: wait}}, Admission{Refused: lowkiq.Failed{"a:1": late, "a:2": late}, New: 2}},
		{"one of a group may", []GroupAnswer{{ID: "a:1", Group: "a:"}, {ID: "a:2", Group: "a:", Wait: wait}}, Admission{Refused: lowkiq.Failed{"a:2": late}, Groups: []string{"a:"}, New: 1, Passed: true}},
		{"told before, and may", []GroupAnswer{{ID: "a:1", Group: "a:", Again: true}}, Admission{Refused: lowkiq.Failed{}, Groups: []string{"a:"}}},
		{"told before, and may not", []GroupAnswer{{ID: "a:1", Group: "a:", Again: true, Wait: wait}}, Admission{Refused: lowkiq.Failed{"a:1": late}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Admit(c.answers); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
