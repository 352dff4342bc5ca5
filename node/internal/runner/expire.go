package runner

import (
	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
)

// dropExpired takes jobs with expired payloads out of a batch. It runs right before the call, because the batch may have
// waited for resources. It returns whether jobs are left, and whether it has sent requests to Redis.
func (r *Runner) dropExpired(batch *lowkiq.Batch, l *lane) (left, asked bool) {
	expired := r.expiredJobs(batch)
	return r.takeOut(expired, batch, l), len(expired) > 0
}

// expiredJobs returns the jobs of a batch with expired payloads. Their error says which payloads end, and how.
func (r *Runner) expiredJobs(batch *lowkiq.Batch) lowkiq.Failed {
	rules := r.queue.rules()
	if rules.Expire.After == 0 && !verdict.HaveExpiry(batch.Jobs) {
		return nil
	}
	return rules.verdictRules().Late(batch.Jobs, r.process.RedisTime(r.process.Now()))
}
