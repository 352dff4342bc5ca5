package recurring

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func spec(text string) (s Spec) {
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	return s
}

// The error of an invalid entry has its name, the field, and what would be right.
func TestCheck(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"cron":"0 6 * * 1-5","zone":"Europe/Berlin","queue":"q","id":"a","payload":{"at":"{tick}"},"header":{"tag":"x"},"missed":"none"}`: "",
		`{"every":"30s","offset":"5s","jitter":"2s","queue":"q","missed":"all","backlog":5}`:                                                "",
		`{"queue":"q"}`: `it says not when: want cron, as in cron: "0 6 * * 1-5", or every, as in every: 30s`,
		`{"cron":"@daily","every":"1s","queue":"q"}`:          `every: cron is given, too; want one of them`,
		`{"cron":"0 6 * * 9","queue":"q"}`:                    `cron "0 6 * * 9", at character 9: day of the week: "9", want 0 to 7, or SUN to SAT`,
		`{"cron":"@daily","zone":"Europe/Berln","queue":"q"}`: `zone "Europe/Berln": want a name of the time zone database, as Europe/Berlin, America/New_York or UTC`,
		`{"cron":"@daily","offset":"1s","queue":"q"}`:         `offset: it is of every, not of cron`,
		`{"every":"1s","zone":"UTC","queue":"q"}`:             `zone: it is of cron, not of every, which counts from the Unix epoch`,
		`{"every":"10ms","queue":"q"}`:                        `every 10ms: want 1s to 8784h0m0s`,
		`{"every":"1s","jitter":"1s","queue":"q"}`:            `jitter 1s: want 0 or more, and less than the time between two ticks, which may be 1s`,
		`{"every":"1s"}`: `queue: queue name is empty`,
		`{"every":"1s","queue":"lowkiq.workflows"}`:                           `queue: queue "lowkiq.workflows": names that begin with "lowkiq." belong to lowkiq`,
		`{"every":"1s","queue":"q","missed":"some"}`:                          `missed "some": want one, none or all`,
		`{"every":"1s","queue":"q","backlog":5}`:                              `backlog: it is of missed: all, not of missed: one`,
		`{"every":"1s","queue":"q","missed":"all","backlog":5000}`:            `backlog 5000: want 1 to 1000`,
		`{"every":"1s","queue":"q","header":{"tick":"x"}}`:                    `header: every push sets "tick" itself`,
		`{"every":"1s","queue":"q","header":{"a b":"x"}}`:                     `header: bad header: name "a b"`,
		`{"every":"1s","queue":"q","id":"` + strings.Repeat("x", 5000) + `"}`: `id: 5000 bytes, at most`,
	} {
		err := spec(text).Check("n")
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: got %v", text, err)
		case want != "" && (err == nil || !errors.Is(err, ErrSpec) || !strings.HasPrefix(err.Error(), `recurring "n": `+want)):
			t.Errorf("%.80s:\n got %v\nwant %s", text, err, want)
		}
	}
	if err := spec(`{"every":"1s","queue":"q"}`).Check("no name"); err == nil {
		t.Error("a name with a blank: got no error")
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 1, 5, 6, 0, 0, 0, time.UTC)
	s := spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}","and":"{tick}"},"header":{"tag":"x"}}`)
	got := s.buildPush("n", tick, 0)
	if got.ID != "n" || string(got.Payload) != `{"at":"2026-01-05T06:00:00Z","and":"2026-01-05T06:00:00Z"}` || len(got.Header) != 2 || got.Header["tick"] != "2026-01-05T06:00:00Z" {
		t.Errorf("got %s %s %v", got.ID, got.Payload, got.Header)
	}
	if got := s.buildPush("n", tick.Add(500*time.Millisecond), 3); got.Header["missed"] != "3" || got.Header["tick"] != "2026-01-05T06:00:00.5Z" {
		t.Errorf("got %v", got.Header)
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"90s": "1m30s", "1h": "1h", "60m": "1h", "500ms": "500ms", "24h0m1s": "24h0m1s", "10m": "10m"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, d, err, want)
		}
	}
	if err := new(Duration).UnmarshalText([]byte("soon")); err == nil || !strings.Contains(err.Error(), "30s") {
		t.Errorf("got %v, want an error with an example", err)
	}
}
