package protocol_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestGolden reads records that every release has stored. This release must write the same.
func TestGolden(t *testing.T) {
	t.Parallel()
	parse := func(text string) (RegistryEntry, error) {
		c, err := Open(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ParseEntry("q", text)
	}
	entry := RegistryEntry{Shards: 16, Layout: 1, Paused: true, Codec: "aes-gcm", Push: rules.Push{PayloadBytes: 1 << 18, Payloads: 500, IDPayload: 1 << 22}, Needs: []string{"fmt2"}}
	golden.Check(t, "entry", inJSON(t, entry), func(t *testing.T, stored string) {
		if got, err := parse(stored); err != nil || !reflect.DeepEqual(got, entry) {
			t.Errorf("got %+v %v, want %+v", got, err, entry)
		}
	})
	for name, gone := range map[string]RegistryEntry{
		"entry-removing": {Shards: 16, Layout: 2, Paused: true, Removing: "JBSWY3DPEHPK3PXPJBSWY3DPEH"}, "entry-removed": {Shards: 16, Layout: 2, Removed: true},
	} {
		golden.Check(t, name, inJSON(t, gone), func(t *testing.T, stored string) {
			if got, err := parse(stored); err != nil || !reflect.DeepEqual(got, gone) || !got.IsDeleted() {
				t.Errorf("got %+v %v, want %+v", got, err, gone)
			}
		})
	}
	for name, entry := range map[string]RegistryEntry{
		"entry-resharding": {Shards: 16, Layout: 1, Reshard: &Reshard{Shards: 64, Layout: 3, By: "ann", At: 1763600000000, Patience: 30000, CancelCalls: true}, Tried: 2, Needs: []string{"reshard"}},
		"entry-resharded":  {Shards: 64, Layout: 3, Was: []Former{{Shards: 16, Layout: 2, At: 1763600000000, Copying: true}, {Shards: 8, Layout: 1, At: 1753600000000}}, Needs: []string{"reshard"}},
	} {
		golden.Check(t, name, inJSON(t, entry), func(t *testing.T, stored string) {
			if got, err := parse(stored); err != nil || !reflect.DeepEqual(got, entry) || got.Readable("q") != nil {
				t.Errorf("got %+v %v, want %+v", got, err, entry)
			}
		})
	}
	question, err := EncodeQuestion(lowkiq.Shard{Queue: "orders", Index: 3}, "a \"b\"\n", "01J", nil)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "question", question, func(t *testing.T, stored string) {
		c, err := Open(Config{Cluster: "c"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want := Question{Shard: lowkiq.Shard{Queue: "orders", Index: 3}, ID: "a \"b\"\n", Answer: "lk:{c}:answer:01J"}
		if got := c.DecodeMail(stored).Asked; got == nil || *got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	bytes, err := EncodeQuestion(lowkiq.Shard{Queue: "orders", Index: 3}, "a\xff\x00\xc3\"", "01J", &Cancellation{Then: ThenHold})
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "question-bytes", bytes, func(t *testing.T, stored string) {
		c, err := Open(Config{Cluster: "c"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := c.DecodeMail(stored).Asked; got == nil || got.ID != "a\xff\x00\xc3\"" || *got.Cancel != (Cancellation{Then: ThenHold}) {
			t.Errorf("got %+v, want the bytes of the id", got)
		}
	})
	golden.Check(t, "answer", inJSON(t, AnswerMessage{ForProcess, 1500, false}), func(t *testing.T, stored string) {
		var got AnswerMessage
		if err := json.Unmarshal([]byte(stored), &got); err != nil || got != (AnswerMessage{ForProcess, 1500, false}) {
			t.Errorf("got %+v %v", got, err)
		}
	})
	goldenRecords(t)
}

// goldenRecords lets the scripts write each form of a record, and reads it.
func goldenRecords(t *testing.T) {
	r := rigOn(t, (&backend{url: redistest.Start(t).URL()}).open(t))
	r.own(Fresh)
	past, ahead := time.UnixMicro(1700000000000001), time.UnixMicro(4102444800000001)
	of := func(id, payload string, score float64, at time.Time) lowkiq.Push {
		return lowkiq.Push{ID: id, Payload: []byte(payload), Score: &score, PerformAt: at}
	}
	r.push(of("j", "one", 1.25, past), of("j", "two", -3, past), of("x", "gone", 1, past))
	for i := range 40 {
		r.push(of("s", fmt.Sprintf("payload %02d", i), float64(i), ahead))
	}
	r.push(of("r", "one", 1.25, past))
	if _, err := browse.Of(r.q).Delete(r.ctx, "", "x"); err != nil {
		t.Fatal(err)
	}
	record := func(id string) string {
		text, err := r.c.DB().ForTests().HGet(r.ctx, r.s.Keys().Jobs, id).Result()
		r.noErr(err)
		return text
	}
	spilled, err := r.c.DB().ForTests().ZRangeWithScores(r.ctx, r.s.Keys().Spill, 0, 2).Result()
	r.noErr(err)
	rows := ""
	for _, row := range spilled {
		rows += fmt.Sprintf("%s %g\n", row.Member, row.Score)
	}
	golden.Check(t, "spill", rows, func(t *testing.T, stored string) {
		if strings.Count(stored, "\n") != 3 {
			t.Errorf("got %q, want three rows", stored)
		}
	})
	index, err := r.c.DB().ForTests().HGetAll(r.ctx, r.s.Keys().Spillx).Result()
	r.noErr(err)
	rows = ""
	for _, field := range slices.Sorted(maps.Keys(index))[:3] {
		rows += fmt.Sprintf("%s %s\n", field, index[field])
	}
	golden.Check(t, "spillx", rows, func(t *testing.T, stored string) {
		for i, row := range strings.Split(strings.TrimSuffix(stored, "\n"), "\n") {
			payload, key, ok := strings.Cut(strings.TrimPrefix(row, "w1:s:payload "), " ")
			if want := "w1:s:" + key + "payload " + payload; !ok || i >= len(spilled) || spilled[i].Member != want {
				t.Errorf("got %q, want where the spill has it: %q", row, want)
			}
		}
	})
	for _, c := range []struct {
		id, form string
		want     lowkiq.Job
	}{
		{"j", "j", lowkiq.Job{ID: "j", RetryCount: -1, PerformAt: past, WaitingSince: past, Payloads: []lowkiq.Payload{{Score: -3, Data: []byte("two")}, {Score: 1.25, Data: []byte("one")}}}},
		{"s", "s", lowkiq.Job{ID: "s", RetryCount: -1, PerformAt: ahead, WaitingSince: ahead}},
	} {
		golden.Check(t, "record-"+c.form, record(c.id), func(t *testing.T, stored string) {
			got, _, err := packed.Decode(c.id, stored, nil)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v %v, want %+v", got, err, c.want)
			}
		})
	}
	golden.Check(t, "record-x", record("x"), func(t *testing.T, stored string) {
		if stored != "x" {
			t.Errorf("got %q, want x", stored)
		}
	})
	// Forms a and e contain Redis's time. These were written at 1,700,000,000.000001 s, form a as the third
	// of its microsecond.
	const scored, fresh = "e\x06\x0a\x24\x18\x1e\x40\x01\x3f\xf4\x00\x00\x00\x00\x00\x00payload", "a\x06\x0a\x24\x18\x1e\x40\x01\x00\x02payload"
	for _, c := range []struct {
		form, example string
		score         float64
		push          lowkiq.Push
		from          int // where what is not the time begins
	}{
		{"a", fresh, 1700000000.000003, job("a", "payload"), 10},
		{"e", scored, 1.25, job("e", "payload", func(p *lowkiq.Push) { score := 1.25; p.Score = &score }), 8},
	} {
		golden.Check(t, "record-"+c.form, c.example, func(t *testing.T, stored string) {
			got, _, err := packed.Decode("a", stored, nil)
			want := lowkiq.Job{ID: "a", RetryCount: -1, PerformAt: past, WaitingSince: past, Payloads: []lowkiq.Payload{{Score: c.score, Data: []byte("payload")}}}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v %v, want %+v", got, err, want)
			}
		})
		r.push(c.push)
		if got := record(c.form); len(got) != len(c.example) || got[:1] != c.form || got[c.from:] != c.example[c.from:] {
			t.Errorf("a job that was just pushed is stored as %q, want the form of %q", got, c.example)
		}
	}
	flight := r.pop(8).Flight
	// A job that was put off contains the time since when it waits. Only of a held id the time at which it
	// may run next is known before.
	const limited = "j-1 1700000003000000 1 3 0 2 1700000000000001 1\n1.25 3:one"
	r.nack(flight, "r", Hold, 0, 0)
	for name, stored := range map[string]string{"record-held": record("r"), "record-limited": limited} {
		golden.Check(t, name, stored, func(t *testing.T, stored string) {
			got, _, err := packed.Decode("r", stored, nil)
			at := HeldAt
			if name == "record-limited" {
				at = time.UnixMicro(1700000003000000)
			}
			want := lowkiq.Job{ID: "r", RetryCount: -1, PerformAt: at, WaitingSince: past, Payloads: []lowkiq.Payload{{Score: 1.25, Data: []byte("one")}}}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v %v, want %+v", got, err, want)
			}
		})
	}
	// A claim's numbers are Redis's time. Its fields are its form.
	claim, err := r.c.DB().ForTests().HGetAll(r.ctx, r.s.Keys().Claim).Result()
	r.noErr(err)
	var fields []string
	for field := range claim {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	golden.Check(t, "claim", strings.Join(fields, " "), func(t *testing.T, stored string) {
		if !strings.Contains(stored, "fence") || !strings.Contains(stored, "instance") {
			t.Errorf("got %q", stored)
		}
	})
}

func inJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
