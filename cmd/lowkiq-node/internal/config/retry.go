package config

import (
	"time"

	"github.com/lowkiq/lowkiq/queue/rules"
)

// Shown is the same for people, in the words of the file.
func (r RetryIn) Shown() any {
	if len(r.Delays) > 0 {
		list := make([]string, len(r.Delays))
		for i, d := range r.Delays {
			list[i] = rules.Duration(d)
		}
		return list
	}
	shown := map[string]any{"base": "15s", "power": 4.0, "jitter": "30s"}
	if r.Base != nil {
		shown["base"] = rules.Duration(*r.Base)
	}
	if r.Power != nil {
		shown["power"] = *r.Power
	}
	if r.Jitter != nil {
		shown["jitter"] = rules.Duration(*r.Jitter)
	}
	return shown
}

// Delay is what node.QueueConfig.RetryIn wants: see [rules.RetryIn].
func (r RetryIn) Delay(count int) time.Duration { return rules.RetryIn(r).Delay(count) }
