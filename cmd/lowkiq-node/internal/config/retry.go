package config

import (
	"time"

	"github.com/lowkiq/lowkiq/queue/rules"
)

// Delay is what node.QueueConfig.RetryIn wants: see [rules.RetryIn].
func (r RetryIn) Delay(count int) time.Duration { return rules.RetryIn(r).Delay(count) }
