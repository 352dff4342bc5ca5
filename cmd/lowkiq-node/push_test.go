package main

import (
	"testing"
	"time"
)

func TestDueTime(t *testing.T) {
	t.Parallel()
	now := time.Unix(1763600000, 500_000_000)
	for text, want := range map[string]float64{
		"10s": 1763600010.5, "2h": 1763607200.5, "1h30m": 1763605400.5,
		"2030-01-31T08:00:00Z": 1896076800, "2030-01-31T09:00:00.25+01:00": 1896076800.25,
		"1763600000.5": 1763600000.5, "4000000000": 4000000000,
	} {
		if got, err := dueTime(text, now); err != nil || got != want {
			t.Errorf("%s: got %f, %v, want %f", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "10", "-10s", "0s", "1763600000000", "nan", "inf", "tomorrow", "2030-01-31", "1700-01-01T00:00:00Z", "9000000h"} {
		if got, err := dueTime(text, now); err == nil {
			t.Errorf("%s: got %f, want a refusal", text, got)
		}
	}
}
