package lowkiq_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// TestTags checks that tags are words between commas, each once.
func TestTags(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"vip": "[vip]", " vip ,new,,vip,": "[vip new]", "": "[]", ",": "[]", "two words": "[two words]"} {
		h, err := lowkiq.NewHeader(map[string]string{"tag": text, "tags": "no"})
		if got := fmt.Sprint(h.Tags()); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, h := range []lowkiq.Header{"", `{"x":"\"tag\":"}`, `{"tag":`} {
		if got := h.Tags(); got != nil {
			t.Errorf("%s: got %q", h, got)
		}
	}
}

// TestExpires checks that the header is a time. The push refuses an invalid time, which then has no effect later.
func TestExpires(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2026-11-23T12:00:00Z":         time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC),
		"2026-11-23T12:00:00.25+01:00": time.Date(2026, 11, 23, 11, 0, 0, 250e6, time.UTC),
		"1700000000":                   time.Unix(1_700_000_000, 0),
		"1700000000.5":                 time.UnixMicro(1_700_000_000_500_000),
		"":                             {},
		"soon":                         {},
		"10m":                          {},
		"1700000000000":                {}, // milliseconds
		"60":                           {},
		"NaN":                          {},
		"2026-11-23":                   {},
	} {
		h, err := lowkiq.NewHeader(map[string]string{"expires": text, "tag": "x"})
		if want.IsZero() != errors.Is(err, lowkiq.ErrHeader) {
			t.Errorf("%q: got %v", text, err)
		}
		if bounds := "seconds since 1970, from 1000000000 to 8589934592"; err != nil && !strings.Contains(err.Error(), bounds) {
			t.Errorf("%q: got %v, want that it says which seconds: %s", text, err, bounds)
		}
		if err != nil {
			h = lowkiq.Header(`{"expires":"` + text + `"}`)
		}
		if got, ok := h.Expires(); !got.Equal(want) || ok == want.IsZero() {
			t.Errorf("%q: got %s, %t, want %s", text, got, ok, want)
		}
	}
	for _, h := range []lowkiq.Header{"", `{"tag":"expires"}`, `{"tag":"\"expires\""}`, `{"expires":`} {
		if got, ok := h.Expires(); ok {
			t.Errorf("%s: got %s", h, got)
		}
	}
}
