package config

import (
	"math"
	"math/rand/v2"
	"time"
)

// longestDelay keeps a steep formula from overflowing.
const longestDelay = 365 * 24 * time.Hour

// Delay is what node.QueueConfig.RetryIn wants: the delay after a failure that made
// the retry count count. The formula is count^power seconds + base + a random part of
// jitter * (count+1): with 4, 15 s and 30 s, which are its defaults, Lowkiq's.
func (r RetryIn) Delay(count int) time.Duration {
	if len(r.Delays) > 0 {
		return r.Delays[min(count, len(r.Delays)-1)]
	}
	power, base, jitter := 4.0, 15*time.Second, 30*time.Second
	if r.Power != nil {
		power = *r.Power
	}
	if r.Base != nil {
		base = *r.Base
	}
	if r.Jitter != nil {
		jitter = *r.Jitter
	}
	seconds := math.Pow(float64(count), power) + base.Seconds() + rand.Float64()*jitter.Seconds()*float64(count+1)
	return time.Duration(min(seconds, longestDelay.Seconds()) * float64(time.Second))
}
